"""What tells that two data sets have the same clients with the same tokens."""

from fedlm.simulations.data.in_memory import TokensInMemory
from fedlm.simulations.data.store.token_store import TokenStore


def test_a_store_of_the_same_clients_has_the_same_fingerprint(small_store):
    train = TokenStore.open(small_store).split("train")
    clients = {name: train.client(index) for index, name in enumerate(train.client_ids)}
    assert TokensInMemory(clients).fingerprint() == train.fingerprint() == train.header.sha256
    first = next(iter(clients))
    for changed in ({"somebody else": clients[first]}, {first: clients[train.client_ids[1]]}):
        others = {name: client for name, client in clients.items() if name != first}
        assert TokensInMemory(changed | others).fingerprint() != train.header.sha256
    assert TokensInMemory(dict(reversed(clients.items()))).fingerprint() != train.header.sha256
