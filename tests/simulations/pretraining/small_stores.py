"""Token stores made of given token ids, for tests."""

import numpy as np

from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.store.writer import StoreWriter
from fedlm.simulations.pretraining.batches.opening_units import open_units
from tests.simulations.data.vocabulary.trained_tokenizer import train_tokenizer

TOKENIZER = train_tokenizer(["some words make a small vocabulary of words"], 64)


def write_store(path, clients, **options):
    """Write clients, each a list of token sequences, into the train split."""
    with StoreWriter(path, "made up", TOKENIZER, **options) as writer:
        for index, sequences in enumerate(clients):
            writer.add("train", f"client{index}", sequences)
    return TokenStore.open(path)


def opened(store, cache, length=5, split="train", **options):
    """Open units, each an example of its own unless told otherwise."""
    chosen = {"unit": "example", "packing": "none", "sequences_per_unit": 1, "seed": 0} | options
    return open_units(store, split, length, cache=cache, **chosen)


def sum_of_tokens(path, cache):
    """Open all text of the train split, and add up its tokens."""
    return int(opened(TokenStore.open(path), cache).stream.tokens.sum(dtype=np.int64))
