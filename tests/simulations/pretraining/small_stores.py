"""Token stores made of given token ids, for tests."""

from trained_tokenizer import train_tokenizer

from simulations.datasets.store import StoreWriter, TokenStore

TOKENIZER = train_tokenizer(["some words make a small vocabulary of words"], 64)


def write_store(path, clients, **options):
    """Write clients, each a list of token sequences, into the train split."""
    with StoreWriter(path, "made up", TOKENIZER, **options) as writer:
        for index, sequences in enumerate(clients):
            writer.add("train", f"client{index}", sequences)
    return TokenStore.open(path)
