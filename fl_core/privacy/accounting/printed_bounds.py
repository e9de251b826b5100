"""Bounds as a reader sees them: of a few digits, and still bounds.

Rounded to the nearest, an epsilon could be printed that is less than the one that was proven.
"""

import decimal


def rounded_up(value: float, digits: int = 4) -> str:
    """Print an upper bound in the fewest digits, of at most `digits` that count, that make a number no smaller.

    Example:
      >>> rounded_up(2.00001), rounded_up(1e-05), rounded_up(2.0), rounded_up(12344.0)
      ('2.001', '1e-05', '2', '1.235e+04')
    """
    return _printed(value, digits, decimal.ROUND_CEILING)


def rounded_down(value: float, digits: int = 4) -> str:
    """Print a lower bound; see `rounded_up`.

    Example:
      >>> rounded_down(1.9999999)
      '1.999'
    """
    return _printed(value, digits, decimal.ROUND_FLOOR)


def _printed(value: float, digits: int, rounding: str) -> str:
    # Of the shortest decimal that is this float, as JSON has it, so that what was given as 0.1 stays 0.1.
    rounded = decimal.Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))
    return f"{float(rounded):.{digits}g}"
