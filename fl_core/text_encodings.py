"""Text files of people: UTF-8, and those that are not are told by what they are."""

from pathlib import Path

from fedlm.fl_core.errors import DataError

_ENCODINGS = {"UTF-32": (b"\xff\xfe\0\0", b"\0\0\xfe\xff"), "UTF-16": (b"\xff\xfe", b"\xfe\xff")}

_BY_ZEROS = {"x000": "UTF-32", "000x": "UTF-32", "x0x0": "UTF-16", "0x0x": "UTF-16"}


def refuse_other_encodings(path: Path, beginning: bytes) -> None:
    """Raise DataError where a file's first bytes, four of them if there are, are those of text in UTF-16 or UTF-32."""
    encoding = next((name for name, marks in _ENCODINGS.items() if beginning.startswith(marks)), None)
    if encoding is None and len(beginning) >= 4:
        # Without a mark: text begins with letters of ASCII, of which all bytes but one are zero.
        encoding = _BY_ZEROS.get("".join("x" if byte else "0" for byte in beginning[:4]))
    if encoding is not None:
        raise DataError(
            f"{path}: is in {encoding}, expected UTF-8. Save it as UTF-8, or convert it: iconv -f {encoding} -t UTF-8"
        )


def utf8_text(path: Path, content: bytes) -> str:
    """Decode what a file holds, without a byte order mark; raises DataError where it is not in UTF-8."""
    refuse_other_encodings(path, content[:4])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: found bytes that are not UTF-8 ({error.reason}), expected text in UTF-8.") from error


def printable(text: str, kept: str = "") -> str:
    """Put a sign in place of what a terminal would obey or not show, but for some characters."""
    return "".join(one if one.isprintable() or one in kept else "\N{REPLACEMENT CHARACTER}" for one in text)
