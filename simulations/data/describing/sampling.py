"""Some clients of a token store with their examples as text, for people to look at."""

from typing import NamedTuple

import numpy as np

from fedlm.fl_core.errors import DataError
from fedlm.models.special_tokens import OOV_ID
from fedlm.simulations.data.store.token_store import TokenStore

OOV_TEXT = "[OOV]"


class ClientSample(NamedTuple):
    """Some of a client's examples."""

    client_id: str
    num_examples: int  # of the client in all
    examples: list[str]  # the text of the first ones, with `OOV_TEXT` where a word was unknown


def sample_clients(
    store: TokenStore, split: str, clients: int, examples: int, *, seed: int = 0, client_id: str | None = None
) -> list[ClientSample]:
    """Choose clients of a split, or the one that is named, and turn their first examples into text.

    At most so many clients and so many examples of each are taken; clients come in the order in which they are stored.
    Raises DataError where there is no such split or client, the split is empty, or a file is damaged.
    """
    found = store.split(split)
    if client_id is not None:
        chosen = [_find(store, split, client_id)]
    elif not found.num_clients:
        raise DataError(f"{store.path}: split {split} has no client. Choose another split.")
    else:
        rng = np.random.default_rng(seed)
        chosen = sorted(rng.choice(found.num_clients, min(clients, found.num_clients), replace=False).tolist())
    samples = []
    for index in chosen:
        client = found.client(index)
        decoded = [store.tokenizer.decode(client.example(j)) for j in range(min(examples, client.num_examples))]
        # No kind of tokenizer decodes anything else to the name of a special token.
        texts = [text.replace(store.special_tokens.names[OOV_ID], OOV_TEXT) for text in decoded]
        samples.append(ClientSample(found.client_id(index), client.num_examples, texts))
    return samples


def _find(store: TokenStore, split: str, client_id: str) -> int:
    ids = store.split(split).client_ids
    if client_id in ids:
        return ids.index(client_id)
    for other in store.header.splits:
        if client_id in store.split(other).client_ids:
            advice = f"It is in split {other}; choose that one."
            break
    else:
        advice = f"Its clients are named like {', '.join(map(repr, ids[:3])) or 'none'}; ask for none to see some."
    raise DataError(f"{store.path}: split {split} has no client {client_id!r}. {advice}")
