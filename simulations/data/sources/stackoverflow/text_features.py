"""The text among the features of ready-made federated data sets, and the splits in the names of their files."""

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import SkippedCounts

TOKENS = "tokens"
"""The feature of Stack Overflow: words with spaces between them."""
TEXT_FEATURES = (TOKENS, "snippets")
"""The features that hold text in the published data sets, that of Stack Overflow and that of Shakespeare."""

_SPLIT_IN_NAME = re.compile(r"(?:.*[^a-z])?(train|held[_-]?out|test)", re.IGNORECASE)


def choose_feature(found: Collection[str], place: str) -> str:
    """Return which of an example's features holds the text; raises DataError where it is none of `TEXT_FEATURES`."""
    for name in TEXT_FEATURES:
        if name in found:
            return name
    raise DataError(
        f"{place}: the features are {', '.join(sorted(found)) or 'none'}, expected {' or '.join(TEXT_FEATURES)}. "
        "Name the feature with the text with --feature."
    )


def decode_texts(values: Iterable[tuple[int, bytes]], feature: str, where: str, skipped: SkippedCounts) -> list[str]:
    """Return the texts of (row, text) as strings, those of `TOKENS` with single spaces between words."""
    texts = []
    for row, value in values:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            skipped.add("bytes that are not UTF-8", place=f"{where}, row {row}")
            continue
        if feature == TOKENS:
            text = " ".join(text.split())
        if not text or text.isspace():
            skipped.add("empty text", place=f"{where}, row {row}")
            continue
        texts.append(text)
    return texts


def splits_in_names(paths: Sequence[Path]) -> list[str | None]:
    """Return the split that the end of each file's name says: train, heldout (or held_out) or test; None where none
    says one.

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
