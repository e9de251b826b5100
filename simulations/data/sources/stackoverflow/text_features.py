"""The text among the features of ready-made federated data sets, and the splits in the names of their files."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedlm.fl_core.errors import DataError, setting
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.sources.tables.user_rows import NOT_UTF8, existing_files

TOKENS = "tokens"
"""The feature of Stack Overflow: words with spaces between them."""
TEXT_FEATURES = (TOKENS, "snippets")
"""The features that hold text in the published data sets, that of Stack Overflow and that of Shakespeare."""

_NAME_IT = f"Name the feature with the text with {setting('feature')}."
_SPLIT_IN_NAME = re.compile(r"(?:.*[^a-z])?(train|held[_-]?out|test)", re.IGNORECASE)


@dataclass(frozen=True)
class FeatureFiles:
    """Files of clients' examples, one of whose features holds the text."""

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """The files."""
    feature: str | None = None
    """Name of the feature with the text. If not given, tokens, or else snippets."""

    @property
    def words_are_separated(self) -> bool:
        return self.text_feature() == TOKENS

    def files(self) -> list[Path]:
        return existing_files(self.paths)

    def text_feature(self) -> str:
        """Return the name of the feature with the text, found in the first file where it is not given."""
        return self._find_feature(self.files()[0]) if self.feature is None else self.feature

    def _find_feature(self, path: Path) -> str:
        raise NotImplementedError


def choose_feature(found: Collection[str], place: str) -> str:
    """Return which of an example's features holds the text; raises DataError where it is none of `TEXT_FEATURES`."""
    for name in TEXT_FEATURES:
        if name in found:
            return name
    raise _missing(found, " or ".join(TEXT_FEATURES), place)


def check_feature(found: Collection[str], feature: str, place: str) -> None:
    """Raise DataError unless a feature is among those found."""
    if feature not in found:
        raise _missing(found, f"{feature} among them", place)


def _missing(found: Collection[str], expected: str, place: str) -> DataError:
    return DataError(f"{place}: the features are {', '.join(sorted(found)) or 'none'}, expected {expected}. {_NAME_IT}")


def no_text(feature: str, found: str, expected: str, place: str) -> DataError:
    """Return the error that tells a user that a feature is not text."""
    return DataError(f"{place}: {feature} is {found}, expected {expected}. {_NAME_IT}")


def client_text(
    client_id: str,
    split: str | None,
    values: Iterable[tuple[int, bytes]],
    *,
    feature: str,
    where: str,
    skipped: SkippedCounts,
) -> Iterator[ClientText]:
    """Yield a client's text of (row, bytes), `TOKENS` with single spaces between words; or count why there is none."""
    texts: list[str] = []
    number = 0
    for row, value in values:
        number += 1
        try:
            text = value.decode()
        except UnicodeDecodeError:
            skipped.add(NOT_UTF8, place=f"{where}, row {row}")
            continue
        if feature == TOKENS:
            text = " ".join(text.split())
        if not text or text.isspace():
            skipped.add("empty text", place=f"{where}, row {row}")
            continue
        texts.append(text)
    if not number:
        skipped.add("client without text", place=where)
    if texts:
        yield ClientText(client_id, texts, split)


def splits_in_names(paths: Sequence[Path]) -> list[str | None]:
    """Return the splits that the ends of files' names say: train, heldout (or held_out) or test; None for all or none.

    Raises DataError where only some names say one.
    """
    matches = [_SPLIT_IN_NAME.fullmatch(path.stem) for path in paths]
    splits = [re.sub("[_-]", "", match[1]).lower() if match else None for match in matches]
    if any(splits) and None in splits:
        raise DataError(
            f"{paths[splits.index(None)]}: its name says no split, but that of another file does. Rename the files to "
            "end in _train, _held_out or _test, or none of them."
        )
    return splits
