"""How objects are shown: in a line at a prompt, as a table in a notebook."""

import html
from collections.abc import Iterable, Mapping
from typing import Any


def in_a_line(shown: object, **facts: Any) -> str:
    """Say in a line what an object is: its class, and what to know of it by name.

    Example:
      >>> in_a_line(object(), path="runs/stdlib", clients=3)
      "object(path='runs/stdlib', clients=3)"
    """
    return f"{type(shown).__name__}({', '.join(f'{name}={value!r}' for name, value in facts.items())})"


def in_a_table(rows: Iterable[Iterable[Any]], titles: Iterable[Any] = ()) -> str:
    """Make a table of HTML of rows of cells, which begin with the name of their row. Numbers are set to the right."""
    head = "".join(f"<th>{_text(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(_cell(cell, first) for first, cell in _firsts(row))}</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def facts_table(facts: Mapping[str, Any]) -> str:
    """Make a table of HTML of facts by name, those that are None left out."""
    return in_a_table((name, value) for name, value in facts.items() if value is not None)


def _firsts(row: Iterable[Any]) -> Iterable[tuple[bool, Any]]:
    return ((number == 0, cell) for number, cell in enumerate(row))


def _cell(value: Any, first: bool) -> str:
    if first:
        return f"<th>{_text(value)}</th>"
    side = ' style="text-align: right"' if isinstance(value, int | float) else ' style="text-align: left"'
    return f"<td{side}>{_text(value)}</td>"


def _text(value: Any) -> str:
    if isinstance(value, bool | str) or not isinstance(value, int | float):
        return html.escape(str(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
