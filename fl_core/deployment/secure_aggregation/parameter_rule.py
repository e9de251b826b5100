"""How many neighbours a cohort's members need, and how many shares give a secret back."""

import math
from typing import NamedTuple

from fedlm.fedlm_client.secure_aggregation.graph_rule import SECURITY_BITS, is_connected, least_threshold
from fedlm.fl_core.errors import ConfigurationError

COMPLETE_BELOW = 64
"""Members, below which each is every other's neighbour."""
CORRECTNESS_BITS = 20
"""A sum is lost, although no more drop out than was said, with a probability of 2^-20 at most."""


class Graph(NamedTuple):
    """Neighbours of each member, and the threshold of shares."""

    neighbours: int
    threshold: int


class Strangers(NamedTuple):
    """Members that do not help.

    Attributes:
      corrupt_share: of the cohort, who may work with the server.
      dropped_share: of the cohort, who may drop out.
    """

    corrupt_share: float = 0.05
    dropped_share: float = 0.1


def choose_graph(clients: int, strangers: Strangers, bits: int = SECURITY_BITS) -> Graph:
    """Find the fewest neighbours with which nothing is lost and no client's two secrets are found.

    Raises:
      ConfigurationError: there is no such graph, since too many are corrupt or drop out.
    """
    corrupt = math.floor(strangers.corrupt_share * clients)
    dropped = math.floor(strangers.dropped_share * clients)
    smallest = 2 if clients >= COMPLETE_BELOW else clients
    for neighbours in (*range(smallest, clients - 1, 2), clients - 1):
        if neighbours < 2 or not is_connected(clients, neighbours, corrupt + dropped, bits):
            continue
        threshold = least_threshold(clients, neighbours, corrupt, bits)
        staying = math.ceil((1 - strangers.dropped_share) * clients - 1e-9)
        if threshold <= _most_threshold(clients, neighbours, staying):
            return Graph(neighbours, threshold)
    raise ConfigurationError(
        f"no secure sum of {clients} clients, of whom {corrupt} may be corrupt and {dropped} may drop out; expected a "
        "larger cohort or smaller shares"
    )


def _most_threshold(clients: int, neighbours: int, staying: int) -> int:
    """Compute the largest number below which a member's staying neighbours are with probability 2^-20/clients."""
    allowed, below = math.comb(clients, neighbours), 0
    fewest = max(0, neighbours - (clients - staying))
    term = math.comb(staying, fewest) * math.comb(clients - staying, neighbours - fewest)
    for count in range(fewest, min(staying, neighbours) + 1):
        below += term
        if below * clients << CORRECTNESS_BITS > allowed:
            return count
        rest = clients - staying - neighbours + count + 1
        term = term * (staying - count) * (neighbours - count) // ((count + 1) * rest)
    return neighbours
