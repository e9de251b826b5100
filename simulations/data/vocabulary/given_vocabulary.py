"""A vocabulary that the user gives in place of a trained one."""

import dataclasses
import json
import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Literal

from fedlm.fl_core.errors import DataError, setting
from fedlm.fl_core.privacy.origins.vocabulary_origin import (
    TOKENIZER_FILE,
    VocabularyOrigin,
    origin_beside,
    tokenizer_file,
)
from fedlm.fl_core.text_encodings import refuse_other_encodings
from fedlm.models.special_tokens import SPECIAL_TOKENS
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from fedlm.simulations.data.vocabulary.tokenizer_kinds import TOKENIZERS
from fedlm.simulations.data.vocabulary.tokenizer_settings import TokenizerSettings
from fedlm.simulations.data.vocabulary.word_level import URL_WORD

_CAPITAL = re.compile("[A-Z]")


def given_tokenizer(settings: TokenizerSettings, words_are_separated: bool = False) -> Tokenizer | None:
    """Make the tokenizer of the vocabulary that settings name; None where they name none.

    Raises DataError where the file is missing, or is not what its kind of tokenizer reads.
    """
    if settings.vocabulary is None:
        return None
    path = tokenizer_file(settings.vocabulary)
    if not path.is_file():
        found = f"a folder without a {TOKENIZER_FILE}" if settings.vocabulary.is_dir() else "nothing"
        raise DataError(
            f"{settings.vocabulary}: found {found}, expected a vocabulary: a {TOKENIZER_FILE}, the data set that has "
            "it, a vocab.txt or a word_count file."
        )
    if path.suffix == ".json":
        return Tokenizer.load(path)
    kind = TOKENIZERS[settings.tokenizer]
    vocabulary = {token: id_ for id_, token in enumerate(SPECIAL_TOKENS)}
    for place, token in kind.read_tokens(_lines(path), settings):
        if token not in SPECIAL_TOKENS:
            _check_token(place, token, vocabulary, settings)
            vocabulary[token] = len(vocabulary)
    if len(vocabulary) == len(SPECIAL_TOKENS):
        raise DataError(f"{path}: found no token, expected one on each line.")
    return Tokenizer(json.loads(kind.build(vocabulary, settings, words_are_separated).to_str()))


def given_origin(path: Path, fingerprint: str, said: Literal["public"] | None) -> VocabularyOrigin:
    """Tell where a vocabulary that was given comes from.

    What its user says of it counts first, though `StoreWriter` makes no store of the very text that a vocabulary was
    made of, and that is said to be public. The tokenizer of another data set has the origin that is recorded there,
    and so takes along what it has spent.

    Args:
      path: its file, or the folder of a data set that has it.
      fingerprint: of the tokenizer that was made of it.
      said: what its user says of it.

    Raises:
      ConfigurationError: the record beside it is damaged.
    """
    found = origin_beside(tokenizer_file(path), fingerprint)
    if said is not None:
        return VocabularyOrigin(said, text=None if found is None else found.text)
    if found is None:
        return VocabularyOrigin("given")
    return dataclasses.replace(found, recorded=True, of_another=True)


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (place, content) of every line; a line ends at a line feed, which a carriage return may precede."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    refuse_other_encodings(path, line[:4])
                place, line = f"{path}, line {number}", line.removesuffix(b"\n").removesuffix(b"\r")
                try:
                    text = line.decode("utf-8")
                except UnicodeDecodeError as error:
                    found = f"bytes that are not UTF-8 ({error.reason}): {line[:60]!r}"
                    raise DataError(f"{place}: found {found}.") from error
                yield place, text
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}), expected a vocabulary.") from error


def _check_token(place: str, token: str, known: Container[str], settings: TokenizerSettings) -> None:
    if token in known:
        raise DataError(f"{place}: found {token!r} a second time, expected every token once. Remove the line.")
    if settings.lowercase and token != URL_WORD and _CAPITAL.search(token):
        raise DataError(
            f"{place}: found {token!r}, which never occurs in lower-cased text. For a vocabulary with capitals give "
            f"{setting('lowercase', False)}."
        )
