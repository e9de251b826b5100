"""A vocabulary of items: each item is one token, whatever its name is."""

import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import Regex, models, normalizers

from fedlm.fl_core.errors import DataError
from fedlm.fl_core.text_encodings import utf8_text
from fedlm.models.special_tokens import BOS_ID, EOS_ID, OOV_ID, PAD_ID, SPECIAL_TOKENS
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer

_UNSEEN = "|".join(SPECIAL_TOKENS[id_].strip("[]") for id_ in (PAD_ID, BOS_ID, EOS_ID))


def item_tokenizer(items: Sequence[str]) -> Tokenizer:
    """Make the tokenizer of a catalogue: a text is one item, taken as it is, and unknown where there is none of that
    name.

    Args:
      items: in the order of their ids, each once, none named like a special token.

    Raises:
      DataError: there is no item.
    """
    if not items:
        raise DataError("the catalogue of items is empty, expected at least one item.")
    vocabulary = {token: id_ for id_, token in enumerate([*SPECIAL_TOKENS, *items])}
    built = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[OOV_ID]))
    built.normalizer = normalizers.Replace(Regex(rf"^\[(?:{_UNSEEN})\]$"), SPECIAL_TOKENS[OOV_ID])
    return Tokenizer(json.loads(built.to_str()))


def read_catalogue(path: Path) -> list[str]:
    """Read a catalogue: UTF-8, one item a line, as it is named in the interactions.

    Raises:
      DataError: the file cannot be read, a line is empty, or an item stands there twice.
    """
    try:
        lines = utf8_text(path, path.read_bytes()).removesuffix("\n").split("\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}), expected a catalogue, one item a line.") from error
    seen: dict[str, int] = {}
    for number, item in enumerate((line.removesuffix("\r") for line in lines), start=1):
        place = f"{path}, line {number}"
        if not item.strip() or item in SPECIAL_TOKENS:
            raise DataError(f"{place}: found {item!r}, expected the name of an item. Remove or rename it.")
        if item in seen:
            raise DataError(
                f"{place}: found {item!r} a second time, first in line {seen[item]}, expected every item once. Remove "
                "the line."
            )
        seen[item] = number
    return list(seen)
