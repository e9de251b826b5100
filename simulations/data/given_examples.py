"""Reads what a program gives as a client's examples, and says what is wrong with it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlm.fedlm_client.text.text_examples import examples_of, with_tokens
from fedlm.fl_core.errors import DataError
from fedlm.fl_core.rounds.client_examples import ClientExamples
from fedlm.models.special_tokens import OWN
from fedlm.simulations.data.grouping import client_digest
from fedlm.simulations.data.splits import SPLITS, split_of
from fedlm.simulations.data.store.format import token_dtype
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer


def in_splits(clients: Any, heldout: Any, test: Any, seed: int) -> dict[str, dict[str, Any]]:
    """Sort clients into splits, and each split's clients as an import does."""
    if (heldout is None) != (test is None):
        raise DataError(
            "heldout and test: found one of the two, expected both (or none, to split clients by their ids)"
        )
    splits: dict[str, dict[str, Any]] = {name: {} for name in SPLITS}
    for found in (clients, heldout or {}, test or {}):
        if odd := [client for client in found if not isinstance(client, str)]:
            raise DataError(f"client {odd[0]!r}: found an id of type {type(odd[0]).__name__}, expected a str")
    given = {"train": clients, "heldout": heldout or {}, "test": test or {}}
    for name, found in given.items():
        for client in sorted(found, key=client_digest):
            splits[name if heldout is not None else split_of(client, seed)][client] = found[client]
    return splits


def check_texts(client: str, texts: Any) -> None:
    """Refuse, as a DataError, what is no list of texts."""
    if isinstance(texts, str) or not isinstance(texts, Iterable) or not all(isinstance(text, str) for text in texts):
        what = "one text" if isinstance(texts, str) else "other things than texts"
        raise DataError(f"client {client!r}: found {what}, expected a list of texts")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"client {client!r}: found text that is not Unicode ({error.reason})") from error


def encoded(texts: Mapping[str, Sequence[str]], tokenizer: Tokenizer) -> dict[str, ClientExamples]:
    """Tokenize the texts of clients, by the rules of an import."""
    examples = {
        client: [one for text in found for one in examples_of(text, "texts")] for client, found in texts.items()
    }
    encoded = iter(tokenizer.encode_batch([one for found in examples.values() for one in found]))
    dtype = token_dtype(tokenizer.vocabulary_size)
    return {
        client: ClientExamples.from_sequences(with_tokens([next(encoded) for _ in found]), dtype)
        for client, found in examples.items()
    }


def without_empty(clients: Mapping[str, ClientExamples]) -> dict[str, ClientExamples]:
    """Leave out clients without an example."""
    return {client: examples for client, examples in clients.items() if examples.num_examples}


def examples_of_ids(client: str, rows: Sequence[ArrayLike], vocabulary_size: int) -> ClientExamples:
    """Read a client's token ids; raises DataError where they are none."""
    if not isinstance(rows, Iterable):
        raise DataError(f"client {client!r}: found a {type(rows).__name__}, expected a list of examples, int [tokens]")
    arrays = [_array(client, row) for row in rows]
    for array in arrays:
        if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or not array.size):
            raise DataError(
                f"client {client!r}: found an example of shape {array.shape} and dtype {array.dtype}, expected int "
                "[tokens]"
            )
        if array.size and not (array.min() > OWN.eos and array.max() < vocabulary_size):
            raise DataError(
                f"client {client!r}: found token ids from {array.min()} to {array.max()}, expected {OWN.eos + 1} to "
                f"{vocabulary_size - 1}: 0 to {OWN.eos} are those of PAD, BOS and EOS, which are put in later"
            )
    return ClientExamples.from_sequences([array for array in arrays if array.size], token_dtype(vocabulary_size))


def _array(client: str, given: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(given)
    except ValueError as error:
        raise DataError(f"client {client!r}: found lists of several lengths, expected an array ({error})") from error


def rows_of(client: str, rows: ArrayLike) -> NDArray[np.int32]:
    """Read a client's rows; raises DataError where they are none."""
    array = _array(client, rows)
    if array.ndim != 2 or array.shape[1] < 2 or not np.issubdtype(array.dtype, np.integer):
        raise DataError(
            f"client {client!r}: found shape {array.shape} and dtype {array.dtype}, expected int32 [examples, width] "
            "with a width of at least 2"
        )
    return np.ascontiguousarray(array, np.int32)
