"""The clients of one split, held in memory."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.rounds.client_examples import ClientExamples, ClientsFingerprint, padded_sequences
from fedlm.models.special_tokens import OWN, SpecialTokens


class TokensInMemory:
    """The clients of one split with their token sequences, without BOS and EOS."""

    has_completions = False
    item_lengths = None

    def __init__(self, clients: Mapping[str, ClientExamples], special_tokens: SpecialTokens = OWN):
        self.client_ids, self._special_tokens = list(clients), special_tokens
        self._clients = list(clients.values())
        self.num_examples = np.array([client.num_examples for client in self._clients], np.int64)

    def client(self, index: int) -> ClientExamples:
        """Return a client's examples."""
        return self._clients[index]

    def sequences(self, client: int, length: int, rows: np.ndarray | None = None) -> np.ndarray:
        return padded_sequences(self._clients[client], length, rows=rows, special_tokens=self._special_tokens)

    def completion_starts(self, client: int, length: int, rows: np.ndarray | None = None) -> None:
        return None

    def digest(self) -> list[Any]:
        """Make a JSON-able fingerprint of every client."""
        return [
            (name, client.lengths.tolist(), hashlib.sha256(client.values.tobytes()).hexdigest())
            for name, client in zip(self.client_ids, self._clients, strict=True)
        ]

    def fingerprint(self) -> str:
        """Make the fingerprint of all clients; that of a store of the same."""
        fingerprint = ClientsFingerprint()
        for name, client in zip(self.client_ids, self._clients, strict=True):
            fingerprint.add([name], [client.num_examples], client.lengths, client.values)
        return fingerprint.hexdigest()


class RowsInMemory:
    """The clients of one split with rows, int32 [examples, width] each, that models read as they are."""

    has_completions = False
    item_lengths = None

    def __init__(self, clients: Mapping[str, NDArray[np.int32]]):
        self.client_ids = list(clients)
        self._clients = list(clients.values())
        self.num_examples = np.array([len(client) for client in self._clients], np.int64)

    def sequences(self, client: int, length: int, rows: np.ndarray | None = None) -> np.ndarray:
        found = self._clients[client]
        if found.shape[1] != length + 1:
            raise ConfigurationError(
                f"{setting('length')} is {length}, but the rows of the data are {found.shape[1]} wide; give length "
                f"{found.shape[1] - 1}, because a row is length + 1 wide"
            )
        return found if rows is None else found[rows]

    def completion_starts(self, client: int, length: int, rows: np.ndarray | None = None) -> None:
        return None

    def fingerprint(self) -> str:
        """Make the fingerprint of all clients."""
        fingerprint = ClientsFingerprint()
        for name, client in zip(self.client_ids, self._clients, strict=True):
            fingerprint.add([name], [len(client)], np.full(len(client), client.shape[1]), client)
        return fingerprint.hexdigest()

    def digest(self) -> list[Any]:
        """Make a JSON-able fingerprint of every client."""
        return [
            (name, client.shape, hashlib.sha256(client.tobytes()).hexdigest())
            for name, client in zip(self.client_ids, self._clients, strict=True)
        ]
