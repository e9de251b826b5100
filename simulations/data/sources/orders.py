"""What puts a user's rows in order: whole numbers, or times, written in one form from the first row to the last."""

import re
from collections.abc import Collection
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

import numpy as np
import pyarrow as pa

EXPECTED = (
    "a whole number of 64 bits, or a time such as 2026-01-31 or 2026-01-31T18:30:00, with nine digits of a second at "
    "most"
)
"""Of a value that orders, for messages."""

NUMBER, ZERO = "a whole number", "the number 0"
DATE, TIME, TIME_OF_A_ZONE = "a date", "a time without a zone", "a time with a zone"
_UNIX_TIMES = {
    f"a Unix time in {unit}": range(631_152_000 * scale, 4_102_444_800 * scale)  # the years 1990 to 2099
    for unit, scale in (("seconds", 1), ("milliseconds", 10**3), ("microseconds", 10**6), ("nanoseconds", 10**9))
}
_NUMBERS = (NUMBER, *_UNIX_TIMES, ZERO)

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY = 86_400 * 10**9
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
_BELOW_MICROSECONDS = re.compile(r"[\dW-]{7,10}.[\d:]+[.,]\d{6}(\d+)")


class Order(NamedTuple):
    """What a value says of its row's place among others."""

    value: int  # the number, or the nanoseconds from 1970 to the time
    form: str  # in words, how it is written

    def __repr__(self) -> str:
        return str(np.datetime64(self.value // 1000, "us")) if self.form not in _NUMBERS else str(self.value)


def read_order(value: object) -> Order | None:
    """Read a value of a row; None where it says nothing of an order. Times are of UTC where they name no zone."""
    if isinstance(value, Order):
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return _time(value.strip()) if isinstance(value, str) else None
    if not _SMALLEST <= number <= _LARGEST or (isinstance(value, float) and number != value):
        return None
    return Order(number, _form_of_number(number))


def column_orders(column: pa.Array) -> list[Order | None]:
    """Read a column of Arrow's times or dates, of any unit."""
    type_ = column.type
    if pa.types.is_timestamp(type_):
        unit, form = _NANOSECONDS[type_.unit], TIME if type_.tz is None else TIME_OF_A_ZONE
    else:
        unit, form = _DAY if pa.types.is_date32(type_) else _NANOSECONDS["ms"], DATE
    numbers = column.cast(pa.int32()) if pa.types.is_date32(type_) else column.cast(pa.int64())
    return [None if number is None else Order(number * unit, form) for number in numbers.to_pylist()]


def mixed_forms(found: Collection[str]) -> tuple[str, str] | None:
    """Name two forms of a column that have no order among them; None where it has one form.

    Numbers that could all be Unix times are such, and then of one unit; where one could not be, all are mere numbers.
    """
    numbers = [form for form in _NUMBERS if form in found]
    if len(numbers) > 1:
        numbers = [NUMBER] if NUMBER in numbers else [form for form in numbers if form != ZERO]
    forms = [*numbers, *(form for form in (DATE, TIME, TIME_OF_A_ZONE) if form in found)]
    return (forms[0], forms[1]) if len(forms) > 1 else None


def _form_of_number(number: int) -> str:
    if number == 0:
        return ZERO
    return next((form for form, times in _UNIX_TIMES.items() if number in times), NUMBER)


def _time(text: str) -> Order | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    nanoseconds = ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1) * 1000
    if below := _BELOW_MICROSECONDS.match(text):
        if below[1][3:].strip("0"):
            return None
        nanoseconds += int(below[1][:3].ljust(3, "0"))
    return Order(nanoseconds, TIME_OF_A_ZONE if time.tzinfo else DATE if _is_date(text) else TIME)


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
