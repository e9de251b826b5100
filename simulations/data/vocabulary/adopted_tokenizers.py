"""Tokenizers of published models, made into ones of ours: no text encodes to PAD, BOS or EOS."""

import copy
import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.errors import DataError
from fedlm.models.special_tokens import OOV_ID, OWN
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer

_BERTS_NAMES = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")
"""What BERT has at the places of ours; [MASK] comes after all others."""
_MASK = "[MASK]"


class AdoptedTokenizer(NamedTuple):
    """A tokenizer of ours for the parameters of a published model.

    Attributes:
      tokenizer: ours.
      rows: int64 [rows of our table], for each of our ids theirs, that of the mask last where there is one; None where
        ids are the same.
      never_predicted: those of our ids that no token of theirs has. Their rows are copies, for inputs.
    """

    tokenizer: Tokenizer
    rows: NDArray[np.int64] | None
    never_predicted: tuple[int, ...] = ()

    def rows_of_theirs(self) -> NDArray[np.int64] | None:
        """Give for each of their ids ours; None where ids are the same."""
        if self.rows is None:
            return None
        ours = [id_ for id_ in range(len(self.rows)) if id_ not in self.never_predicted]
        theirs = np.empty(len(ours), np.int64)
        theirs[self.rows[ours]] = ours
        return theirs


class TokenIds(NamedTuple):
    """The special tokens of a published model whose ids are not ours; None for one that it has not."""

    bos: int | None
    eos: int


def adopt_tokenizer(path: Path, rows: int, masked: bool, ids: TokenIds | None = None) -> AdoptedTokenizer:
    """Make a tokenizer of ours of a published model's tokenizer.json.

    Rows of the table that no token has get names that no text encodes to, so that vocabulary and table are equally
    large.

    Args:
      path: the file.
      rows: of the model's table of tokens.
      masked: whether the model predicts masked tokens, and has an id for the mask.
      ids: of its special tokens, where they are neither ours nor Gemma's nor BERT's.

    Raises:
      DataError: the file is missing or damaged, or has other special tokens than those that are known.
    """
    definition = _read(path)
    try:
        if masked:
            return _of_bert(definition, rows)
        if ids is not None:
            return _of_other_ids(definition, rows, ids)
        return AdoptedTokenizer(_of_same_ids(definition, rows), None)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except Exception as error:  # the tokenizers library raises bare Exception for a wrong definition
        raise DataError(f"{path}: is not a tokenizer that can be read ({type(error).__name__}: {error})") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        definition = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: there is no such file; a tokenizer.json is needed, which `AutoTokenizer.from_pretrained(FOLDER)"
            ".save_pretrained(FOLDER)` of transformers makes of any other form"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read ({error}), expected a tokenizer in JSON") from error
    vocabulary = (definition.get("model") or {}).get("vocab") if isinstance(definition, dict) else None
    if not isinstance(vocabulary, dict):
        raise DataError(f"{path}: found no model with a vocabulary from tokens to ids, expected one")
    return definition


def _stripped(definition: dict[str, Any], vocabulary: dict[str, int]) -> dict[str, Any]:
    made = copy.deepcopy(definition)
    made["model"]["vocab"] = vocabulary
    return made | {"truncation": None, "padding": None, "post_processor": None}


def _fill(vocabulary: dict[str, int], size: int) -> dict[str, int]:
    """Name the ids that no token has."""
    used = set(vocabulary.values())
    if len(used) != len(vocabulary):
        ids = sorted(vocabulary.values())
        twice = next(id_ for id_, following in itertools.pairwise(ids) if id_ == following)
        named = [token for token, id_ in vocabulary.items() if id_ == twice]
        raise DataError(f"the tokens {', '.join(map(repr, named))} have the same id, {twice}, expected one token an id")
    if min(used) < 0 or max(used) >= size:
        raise DataError(
            f"its ids go from {min(used)} to {max(used)}, but the model has {size} rows; give the model's own tokenizer"
        )
    return vocabulary | {f"[no token {id_}]": id_ for id_ in range(size) if id_ not in used}


def _with_added(definition: dict[str, Any], rows: int) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Give the vocabulary with the tokens that were added to it, and those."""
    added = [token for token in definition.get("added_tokens") or [] if token["id"] < rows]
    return definition["model"]["vocab"] | {token["content"]: token["id"] for token in added}, added


def _of_same_ids(definition: dict[str, Any], rows: int) -> Tokenizer:
    vocabulary, added = _with_added(definition, rows)
    # What a text spells must not become PAD, BOS or EOS.
    kept = [token for token in added if token["id"] >= OOV_ID]
    tokenizer = Tokenizer(_stripped(definition, _fill(vocabulary, rows)) | {"added_tokens": kept})
    if tokenizer.vocabulary_size != rows:
        raise DataError(f"it makes {tokenizer.vocabulary_size} ids, but the model has {rows} rows")
    return tokenizer


def _of_bert(definition: dict[str, Any], rows: int) -> AdoptedTokenizer:
    theirs = dict(definition["model"]["vocab"])
    if list(sorted(theirs, key=theirs.__getitem__)[:4]) == list(OWN.names):
        return AdoptedTokenizer(_of_same_ids(definition, rows - 1), None)
    if missing := [name for name in (*_BERTS_NAMES, _MASK) if name not in theirs]:
        raise DataError(f"has no {', '.join(missing)}, expected BERT's special tokens")
    by_id = {id_: name for name, id_ in _fill(theirs, rows).items()}
    special = [theirs[name] for name in _BERTS_NAMES]
    words = [id_ for id_ in range(rows) if id_ not in special and id_ != theirs[_MASK]]
    names = [*OWN.names, *(by_id[id_] for id_ in words)]
    made = _stripped(definition, {name: id_ for id_, name in enumerate(names)}) | {"added_tokens": []}
    return AdoptedTokenizer(Tokenizer(made), np.array([*special, *words, theirs[_MASK]], np.int64))


def _of_other_ids(definition: dict[str, Any], rows: int, ids: TokenIds) -> AdoptedTokenizer:
    """Put our special tokens first. Those that they have not are read as the end of a text."""
    vocabulary, added = _with_added(definition, rows)
    by_id = {id_: name for name, id_ in _fill(vocabulary, rows).items()}
    bos = None if ids.bos == ids.eos else ids.bos
    unknown = vocabulary.get(definition["model"].get("unk_token"))
    unknown = None if unknown in (bos, ids.eos) else unknown
    special = [ids.eos if id_ is None else id_ for id_ in (None, bos, ids.eos, unknown)]
    words = [id_ for id_ in range(rows) if id_ not in special]
    # Tokens that are spelled as ours are not matched in text any more.
    names = {id_: f"[no token {id_}]" if by_id[id_] in OWN.names else by_id[id_] for id_ in words}
    made = _stripped(definition, {name: id_ for id_, name in enumerate([*OWN.names, *names.values()])})
    made["model"]["unk_token"] = None if unknown is None else OWN.names[OOV_ID]
    made["added_tokens"] = [
        token | {"id": made["model"]["vocab"][token["content"]]}
        for token in added
        if names.get(token["id"]) == token["content"]
    ]
    never = tuple(place for place, id_ in enumerate((None, bos, ids.eos, unknown)) if id_ is None)
    return AdoptedTokenizer(Tokenizer(made), np.array([*special, *words], np.int64), never)
