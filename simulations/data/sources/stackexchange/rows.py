"""The rows of a Stack Exchange dump: XML files with one flat element for each post or comment.

Rows are found by their beginnings, since XML allows no `<` inside an attribute, and each is parsed on its own. So
files can be cut anywhere between two rows, and a row's fault is known by its line.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from xml.parsers import expat

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import SkippedCounts
from fedlm.simulations.data.sources.tables.byte_parts import BytePart
from fedlm.simulations.data.sources.tables.user_rows import NOT_UTF8

_ROW = re.compile(rb"<row[\s/>]")
_AFTER_ROW = (b" ", b"\t", b"\r", b"\n", b"/", b">")
_CHARACTER_REFERENCE = re.compile(rb"&#(?:x([0-9A-Fa-f]+)|([0-9]+));")
_NAMES: dict[str, str] = {}  # of attributes, shared by all rows' parsers


def last_row_start(data: bytes, start: int) -> int:
    """Find where the last row begins, which is where those before it end; a `FindEnd`."""
    found, start = len(data), max(start - 4, 1)
    while (found := data.rfind(b"<row", start, found)) != -1:
        if data[found + 4 : found + 5] in _AFTER_ROW:
            return found
    return -1


def read_rows(part: BytePart, root: str, skipped: SkippedCounts) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, attributes) of each row of a part that was cut by `last_row_start`; `root` is the outermost
    element."""
    data = part.load()
    starts = [found.start() for found in _ROW.finditer(data)]
    first = starts[0] if starts else len(data)
    if part.start == 0:
        _check_beginning(part.path, data[:first], root, whole=part.last and not starts)
    if part.last and starts:
        data = _without_end(part, data, root)
    line = part.first_line + data.count(b"\n", 0, first)
    for start, end in itertools.pairwise((*starts, len(data))):
        row = data[start:end]
        attributes = _parse(row, part.path, line, skipped)
        if attributes is not None:
            yield line, attributes
        line += row.count(b"\n")


def _parse(row: bytes, path: Path, line: int, skipped: SkippedCounts) -> dict[str, str] | None:
    try:
        return _attributes(row)
    except (expat.ExpatError, UnicodeDecodeError):  # rare, so only now look for what may be wrong
        place = f"{path}, line {line}"
    try:
        row.decode()
    except UnicodeDecodeError:
        skipped.add(NOT_UTF8, place=place)
        return None
    try:
        return _attributes(_CHARACTER_REFERENCE.sub(_allowed_reference, row))
    except expat.ExpatError as error:
        raise DataError(
            f"{place}: found a malformed row ({expat.ErrorString(error.code)}): "
            f"{row[:80].decode(errors='replace')!r}. Expected <row .../>, well-formed. "
            "Fetch the file again, or mend or remove the row."
        ) from error


def _attributes(row: bytes) -> dict[str, str]:
    parser = expat.ParserCreate("utf-8", None, _NAMES)
    elements: list[dict[str, str]] = []
    parser.StartElementHandler = lambda name, attributes: elements.append(attributes)
    parser.Parse(row, True)
    return elements[0]


def _allowed_reference(found: re.Match[bytes]) -> bytes:
    """Return a character reference, or nothing where XML forbids the character."""
    digits, base = (found[1], 16) if found[1] else (found[2], 10)
    digits = digits.lstrip(b"0")
    code = int(digits or b"0", base) if len(digits) < 8 else -1
    allowed = code in (9, 10, 13) or 0x20 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or 0x10000 <= code < 0x110000
    return found[0] if allowed else b""


def _without_end(part: BytePart, data: bytes, root: str) -> bytes:
    closing = f"</{root}>".encode()
    stripped = data.rstrip()
    if not stripped.endswith(closing):
        line = part.first_line + stripped.count(b"\n")
        raise DataError(
            f"{part.path}, line {line}: the file is cut off: it ends with "
            f"{stripped[-40:].decode(errors='replace')!r}, expected {closing.decode()}. Fetch the file again."
        )
    return stripped.removesuffix(closing)


def _check_beginning(path: Path, beginning: bytes, root: str, whole: bool) -> None:
    """Check what comes before the first row: at most an XML declaration, a document type and the outermost element."""
    if not beginning.strip():
        found = "an empty file" if whole else "a row without an element around it"
        raise DataError(f"{path}: found {found}, expected <{root}> with rows. Fetch the file again.")
    elements = _elements(path, beginning, root, whole)
    if not elements:
        raise DataError(f"{path}: found no XML element before the first row, expected <{root}>. Fetch the file again.")
    if elements[0] != root:
        raise DataError(f"{path}: found <{elements[0]}>, expected <{root}>. Is this the file that its name says it is?")
    if len(elements) > 1:
        raise DataError(f"{path}: found <{elements[1]}> in <{root}>, expected <row .../>. Fetch the file again.")


def _elements(path: Path, beginning: bytes, root: str, whole: bool) -> list[str]:
    elements: list[str] = []

    def declaration(version: str, encoding: str | None, standalone: int) -> None:
        if encoding is not None and encoding.lower() not in ("utf-8", "utf8"):
            raise DataError(f"{path}: is in {encoding}, expected UTF-8. Convert the file to UTF-8.")

    def document_type(name: str, system: str | None, public: str | None, has_internal_subset: bool) -> None:
        if has_internal_subset:
            raise DataError(
                f"{path}: found declarations in its DOCTYPE; entity declarations are refused, for they can make text "
                "without end. Expected a dump as it was published."
            )

    parser = expat.ParserCreate("utf-8")
    parser.XmlDeclHandler = declaration
    parser.StartDoctypeDeclHandler = document_type
    parser.StartElementHandler = lambda name, attributes: elements.append(name)
    try:
        parser.Parse(beginning, False)
    except expat.ExpatError as error:
        raise DataError(
            f"{path}, line {error.lineno}: found no XML ({expat.ErrorString(error.code)}): "
            f"{beginning[:40].decode(errors='replace')!r}. Expected <{root}> with rows. Fetch the file again."
        ) from error
    if whole:
        try:
            parser.Parse(b"", True)
        except expat.ExpatError as error:
            raise DataError(
                f"{path}, line {error.lineno}: the file is cut off, or not XML ({expat.ErrorString(error.code)}): it "
                f"ends with {beginning[-40:].decode(errors='replace')!r}, expected </{root}>. Fetch the file again."
            ) from error
    return elements
