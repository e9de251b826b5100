"""JSON that every program reads: it holds neither NaN nor infinity, which Python alone writes and reads."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any


def json_text(value: Any, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """Write a value as JSON, with null in place of each number that is not finite.

    Args:
      value: made of what JSON has, and tuples.
      indent: spaces by which lines are indented; None for one line.
      default: makes what JSON has of anything else; an error where None.

    Example:
      >>> json_text({"loss": float("inf"), "steps": [1, 2.5]})
      '{"loss": null, "steps": [1, 2.5]}'
    """
    return json.dumps(_finite(value), indent=indent, allow_nan=False, default=default)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
