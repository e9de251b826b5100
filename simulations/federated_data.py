"""What the cohort engine needs of a federated data set, and its in-memory form."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class FederatedData(Protocol):
    """Clients with their token sequences.

    Attributes:
      num_examples: int64 [clients].
    """

    num_examples: np.ndarray

    def sequences(self, client: int) -> np.ndarray:
        """Fetch a client's examples.

        Args:
          client: its index.

        Returns:
          int32 [examples, length + 1]: `[BOS] w1 .. wk [EOS]`, cut or padded with PAD.
        """
        ...


class InMemoryData:
    """Federated data held in lists; for tests and for data of your own that is small."""

    def __init__(self, clients: Sequence[np.ndarray]):
        """Keep the clients' sequences.

        Args:
          clients: int32 [examples, length + 1] each.
        """
        self._clients = clients
        self.num_examples = np.array([len(client) for client in clients], np.int64)

    def sequences(self, client: int) -> np.ndarray:
        """See `FederatedData.sequences`."""
        return self._clients[client]
