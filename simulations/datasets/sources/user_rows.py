"""What tables of your own users' text have in common: a user, a text, perhaps a split and a time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fl_core.errors import DataError
from simulations.datasets.client_text import ClientText, SkippedCounts
from simulations.datasets.english import split_sentences
from simulations.datasets.splits import SPLITS


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """Which fields of a row mean what."""

    user: str = "user"
    """Name of the field that says whose text it is. Rows without a user are left out, and counted."""
    text: str = "text"
    """Name of the field with the text."""
    split: str | None = None
    """Name of a field that says train, heldout or test. Without it, users are split 80/10/10."""
    order: str | None = None
    """Name of a field with whole numbers, times say, by which a user's rows are put in order."""
    examples: Literal["sentences", "texts"] = "sentences"
    """What makes an example: each sentence of a text, or each text as a whole."""

    @property
    def words_are_separated(self) -> bool:
        """See `Source.words_are_separated`."""
        return False


def existing_files(paths: Sequence[Path]) -> list[Path]:
    """Check that files are there.

    Args:
      paths: of files.

    Returns:
      The same.

    Raises:
      DataError: one is not a file.
    """
    if not paths:
        raise DataError("no file is named, expected at least one to import.")
    for path in paths:
        if not path.is_file():
            found = "a folder" if path.is_dir() else "nothing"
            raise DataError(f"{path}: found {found}, expected a file to import.")
    return list(paths)


def row_text(row: Mapping[str, Any], settings: RowSettings, place: str, skipped: SkippedCounts) -> Iterator[ClientText]:
    """Yield the text of a row, or count why there is none.

    Args:
      row: values by field.
      settings: which fields mean what.
      place: file and line or row, for messages.
      skipped: receives the counts of what is left out.

    Raises:
      DataError: the row has no field of such a name, or a value of the wrong type.
    """
    wanted = [name for name in (settings.user, settings.text, settings.split, settings.order) if name is not None]
    missing = [name for name in wanted if name not in row]
    if missing:
        raise DataError(
            f"{place}: has no field {missing[0]!r}, only {', '.join(map(repr, row)) or 'none'}. "
            "Name the fields with --user, --text, --split and --order."
        )
    user, text = row[settings.user], row[settings.text]
    if user is None or user == "":
        skipped.add("row without user", place=place)
        return
    if not isinstance(user, str | int) or isinstance(user, bool):
        raise DataError(f"{place}: {settings.user!r} is {user!r}, expected a string or a whole number.")
    if text is None or text == "":
        skipped.add("empty text", place=place)
        return
    if not isinstance(text, str):
        raise DataError(f"{place}: {settings.text!r} is {str(text)[:60]!r}, expected a string.")
    yield ClientText(
        client_id=str(user),
        sentences=split_sentences(" ".join(text.split())) if settings.examples == "sentences" else [text],
        split=_split(row, settings, place),
        order=_order(row, settings, place),
    )


def _split(row: Mapping[str, Any], settings: RowSettings, place: str) -> str | None:
    if settings.split is None:
        return None
    split = row[settings.split]
    if split not in SPLITS:
        raise DataError(f"{place}: {settings.split!r} is {split!r}, expected one of {', '.join(SPLITS)}.")
    return str(split)


def _order(row: Mapping[str, Any], settings: RowSettings, place: str) -> int:
    if settings.order is None:
        return 0
    try:
        return int(row[settings.order])
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{place}: {settings.order!r} is {row[settings.order]!r}, expected a whole number.") from error
