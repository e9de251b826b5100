"""Counting how often each token of a data set occurs in the units that training clips."""

import secrets
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.errors import ConfigurationError, DataError, setting
from fedlm.fl_core.privacy.origins.ancestry import BUDGET_FILE
from fedlm.fl_core.privacy.origins.private_relevance import contribution, counted_relevance, noised_relevance
from fedlm.fl_core.privacy.origins.relevance_origin import (
    Counted,
    PrivateRelevance,
    Relevance,
    RelevanceOrigin,
    fingerprint_of_count,
)
from fedlm.models.special_tokens import PAD_ID
from fedlm.simulations.data.store.client_split import ClientSplit
from fedlm.simulations.data.store.token_store import TokenStore

Packing = Literal["none", "packed"]


def count_relevance(
    store: TokenStore,
    unit: Counted,
    length: int,
    packing: Packing | None = None,
    *,
    private: PrivateRelevance | None = None,
    public: bool = False,
    observe: Callable[[int, int], None] = lambda done, clients: None,
) -> Relevance:
    """Count in how many units of the train split each token occurs.

    Args:
      store: the data set.
      unit: `example`: every sequence is a unit. `client`: all of a client's sequences are one, as always where these
        are of items.
      length: tokens that a model reads in a sequence.
      packing: `none`: each stored example is a sequence, cut at the length. `packed`: each client's examples are laid
        end to end and cut into sequences; training may lay those of several clients in one. None for what training
        does where nothing is said.
      private: the noise of a private count; None for one without.
      public: whether the user says that the text is public.
      observe: called with the number of clients that are done, and that of all.

    Raises:
      ConfigurationError: the data set has a privacy budget, a setting is out of range, or units of a private count may
        hold text of several clients.
      DataError: there is no text.
    """
    if length < 1:
        raise ConfigurationError(f"{setting('length')} is {length}, but must be at least 1")
    apart = store.has_completions or store.item_sequences
    if packing == "packed" and apart:
        what = "sequences of items" if store.item_sequences else "prompts and completions"
        raise ConfigurationError(
            f"{setting('packing')} is packed, but {store.path} has {what}, which cannot be packed; give none"
        )
    packing = packing or ("none" if apart else "packed")
    # A user of items has one example, which is all that is theirs: one count is for every run, whichever unit it names.
    unit = "client" if store.item_sequences else unit
    if (store.path / BUDGET_FILE).exists():
        raise ConfigurationError(
            f"{store.path}: has a privacy budget, which cannot include counts; count public text with the same "
            "tokenizer"
        )
    if private is not None and unit == "example" and packing == "packed":
        raise ConfigurationError(
            "a private count protects each client, but one packed sequence may hold data of several clients. A run on "
            f"such sequences would be NOT PRIVATE. Give {setting('packing', 'none')}, here and to the run, or "
            f"{setting('unit', 'client')} here and {setting('unit', 'user')} to the run"
        )
    split, size = store.split("train"), store.vocabulary_size
    training_data = store.training_data(check=True)
    occurrences, units, sums = np.zeros(size, np.int64), 0, np.zeros(size + 1, np.int64)
    for client in range(split.num_clients):
        found, number = _occurrences(split, client, size, unit=unit, length=length, packing=packing)
        occurrences, units = occurrences + found, units + number
        if private is not None and number:
            sums += contribution(found / number, private.tokens_per_unit)
        observe(client + 1, split.num_clients)
    if not units:
        raise DataError(f"{store.path}: split train has no text to count; import data with more clients")
    values = counted_relevance(occurrences, units) if private is None else noised_relevance(sums, private)
    # Nothing is learned of the embedding of padding, and nobody attends to it.
    values = tuple(1.0 if token == PAD_ID else value for token, value in enumerate(values))
    kind = "private" if private is not None else "public" if public else "training data"
    count = None if private is None else secrets.token_hex(16)
    origin = RelevanceOrigin(kind, fingerprint_of_count(values, private, count), private)  # type: ignore[arg-type]
    return Relevance(values, origin, store.fingerprint, training_data, unit, length, packing, count)


def _occurrences(
    split: ClientSplit, client: int, vocabulary_size: int, *, unit: Counted, length: int, packing: Packing
) -> tuple[NDArray[np.int64], int]:
    """Count in how many of a client's units each token occurs, int64 [vocabulary], and the units."""
    if packing == "packed":
        tokens = _with_ends(split, client)
        # As in training, neighbouring sequences share a token.
        starts = np.arange(0, max(len(tokens) - 1, 0), length)
        places = starts[:, None] + np.arange(length + 1)
        sequences = np.where(places < len(tokens), tokens.take(places, mode="clip"), PAD_ID)
    else:
        sequences = split.sequences(client, length).astype(np.int64)
    if not sequences.size:
        return np.zeros(vocabulary_size, np.int64), 0
    if unit == "client":
        sequences = sequences.reshape(1, -1)
    of_units = sequences + vocabulary_size * np.arange(len(sequences))[:, None]
    found = np.bincount(np.unique(of_units) % vocabulary_size, minlength=vocabulary_size)
    found[PAD_ID] = 0
    return found, len(sequences)


def _with_ends(split: ClientSplit, client: int) -> NDArray[np.int64]:
    """Lay a client's examples end to end, each between BOS and EOS, int64 [tokens]."""
    examples = split.client(client)
    number, lengths = examples.num_examples, np.asarray(examples.lengths, np.int64)
    tokens = np.empty(examples.num_tokens + 2 * number, np.int64)
    begins = np.asarray(examples.offsets[:-1], np.int64) + 2 * np.arange(number)
    ends = begins + lengths + 1
    inner = np.ones(len(tokens), bool)
    inner[begins] = inner[ends] = False
    tokens[begins], tokens[ends], tokens[inner] = split.special_tokens.bos, split.special_tokens.eos, examples.values
    return tokens
