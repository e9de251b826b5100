"""Which parts of a person's text training reads: the lines of a file, and the examples that a text is cut into.

An import, data in memory, `fedlm client`, fleets and clients of plans follow these rules. The clients of plans share
this file by a link, so it imports only the standard library. docs/protocol.md has the rules for other languages.
"""

import json
import re
from collections.abc import Iterable, Sized
from typing import Literal, NamedTuple, TypeVar

ExampleCut = Literal["sentences", "texts"]
"""What makes an example: each sentence of a text, or each text as a whole."""

CUTS: tuple[ExampleCut, ...] = ("sentences", "texts")

_LATEST = 1e11  # seconds since 1970, in the year 5138; milliseconds passed it in 1973
_ABBREVIATION = re.compile(
    r"al|approx|ca|cf|dr|e\.g|eq|fig|i\.e|incl|jr|mrs?|ms|nos?|pp|prof|resp|sec|sr|st|viz|vol|vs",
    re.IGNORECASE | re.ASCII,
)
_HALF_PAIR = re.compile(r"[\ud800-\udfff]")
_BOUNDARY = re.compile(r"[.!?][\"'`)\]]*\s+(?=[\"'`(\[]*[A-Z])")
_Tokens = TypeVar("_Tokens", bound=Sized)


class LineError(ValueError):
    """A line of a file is no example. The message says which line and why, and has nothing of its text."""


class Line(NamedTuple):
    """A line of a file of text."""

    text: str
    added: float | None  # seconds since 1970, where the line says it
    written: str  # the line itself, which may have other fields


def examples_of(text: str, cut: ExampleCut) -> list[str]:
    """Cut a text into examples; there are none in a text that has no word, or that is no Unicode."""
    words = text.split()
    if not words or not is_unicode(text):
        return []
    return split_sentences(" ".join(words)) if cut == "sentences" else [text]


def with_tokens(encoded: Iterable[_Tokens]) -> list[_Tokens]:
    """Keep the examples that a tokenizer finds a token in: no other example is trained on."""
    return [tokens for tokens in encoded if len(tokens)]


def is_unicode(text: str) -> bool:
    """Say whether a text is Unicode, as it is not with half of a surrogate pair, which JSON can hold."""
    return _HALF_PAIR.search(text) is None


def split_sentences(paragraph: str) -> list[str]:
    """Split a paragraph at [.!?] followed by a space and a capital, but not after common abbreviations."""
    found: list[str] = []
    start = word = 0  # where the sentence begins, and where the word before a boundary begins at the earliest
    for boundary in _BOUNDARY.finditer(paragraph):
        before, word = paragraph[word : boundary.start()], boundary.end()
        if paragraph[boundary.start()] == "." and _is_abbreviation(before):
            continue
        found.append(paragraph[start : boundary.end()].strip())
        start = boundary.end()
    found.append(paragraph[start:].strip())
    return [sentence for sentence in found if sentence]


def read_lines(content: bytes) -> list[Line]:
    """Read lines `{"text": ..., "added": seconds since 1970}` in UTF-8, of which `added` may be missing.

    Raises:
      LineError: a line is something else.
    """
    try:
        # Line separators of Unicode may stand inside of a text.
        lines = re.split(r"\r\n|\n|\r", content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        number = 1 + len(re.findall(rb"\r\n|\n|\r", content[: error.start]))
        raise LineError(f"line {number} is not UTF-8") from error
    return [_line(number, line) for number, line in enumerate(lines, start=1) if line.strip(" \t")]


def is_time(added: object) -> bool:
    """Say whether something is a time in seconds since 1970, and not in milliseconds."""
    return type(added) in (int, float) and 0 <= added < _LATEST  # type: ignore[operator]


def _line(number: int, line: str) -> Line:
    try:
        found = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        # What the parser says may hold the text itself, and this may go to a log.
        begins = line.startswith("\ufeff")
        why = "begins with a byte-order mark, which only a file may" if begins else "is not JSON"
        raise LineError(f"line {number} {why}") from None
    if not isinstance(found, dict) or not isinstance(found.get("text"), str):
        raise LineError(f"line {number} is not an object with a text")
    if "added" in found and not is_time(found["added"]):
        raise LineError(f'line {number} has a time "added" that is not a number of seconds since 1970')
    return Line(found["text"], found.get("added"), line.strip(" \t"))


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")


def _is_abbreviation(before: str) -> bool:
    last = before.rsplit(None, 1)[-1].lstrip("\"'`([") if before.strip() else ""
    is_initial = len(last) == 1 and last.isupper() and last != "I"
    return is_initial or _ABBREVIATION.fullmatch(last) is not None
