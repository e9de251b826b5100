"""A small token store with clients of many sizes, for tests."""

from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.in_memory import InMemoryText
from fedlm.simulations.data.store.token_store import TokenStore

NAMES = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]


def made_up_texts(clients=60):
    """Client i has i + 1 sentences of 1 to 60 words."""
    return [
        ClientText(
            f"client{i}",
            [" ".join(NAMES[(i * j * k + k) % 10] for k in range(1 + (i + 7 * j) % 60)) for j in range(i + 1)],
        )
        for i in range(clients)
    ]


def import_made_up(out, texts=None, **settings):
    """Import words, of which the vocabulary has the 7 most frequent unless told otherwise."""
    settings = ImportSettings(**{"tokenizer": "words", "vocabulary_size": 7, **settings})
    import_text("made up", InMemoryText(made_up_texts() if texts is None else texts), out, settings, workers=1)
    return TokenStore.open(out)
