"""What neighbours and a threshold must be so that bad luck, or a server that lies about who dropped out, gains nothing.

The rule of federated-compute's `graph_parameter_finder.cc`, which follows Bell et al. (2020), in exact arithmetic.
"""

import math

SECURITY_BITS = 40
"""A client's neighbours fail to protect it with a probability of 2^-40 at most."""


def is_connected(clients: int, neighbours: int, bad: int, bits: int = SECURITY_BITS) -> bool:
    """Say whether honest clients that stay are connected, but for a probability of 2^-bits.

    Args:
      clients: of the cohort.
      neighbours: of each.
      bad: how many are corrupt or drop out.
      bits: of security.
    """
    if neighbours > bad or neighbours == clients - 1:
        return True
    log = (
        math.log(clients * (clients - neighbours - 1) / 2)
        + math.lgamma(bad + 1)
        + math.lgamma(clients - neighbours + 1)
        - math.lgamma(clients + 1)
        - math.lgamma(bad - neighbours + 1)
    )
    return log < -(bits + 1) * math.log(2)


def least_threshold(clients: int, neighbours: int, corrupt: int, bits: int = SECURITY_BITS) -> int:
    """Compute how many shares a secret must need, so that no client's two secrets can both be computed.

    A server may tell different neighbours of a client different things, so that each gives a share of one of the two.
    The corrupt ones among them give a share of both.

    Args:
      clients: of the cohort.
      neighbours: of each.
      corrupt: how many clients work with the server.
      bits: of security.
    """
    among = corrupt_neighbours(clients, neighbours, corrupt, bits)
    return max(2, math.ceil((among + neighbours - 1.25) / 2) + 1)


def corrupt_neighbours(clients: int, neighbours: int, corrupt: int, bits: int = SECURITY_BITS) -> int:
    """Compute the least number above which a client's corrupt neighbours are with probability 2^-(bits+1)/clients."""
    most = min(corrupt, neighbours)
    # P[exactly i] in units of 1 / C(clients, neighbours), from the most on down: whole numbers.
    term = math.comb(corrupt, most) * math.comb(clients - corrupt, neighbours - most)
    allowed, above = math.comb(clients, neighbours), 0
    for count in range(most, 0, -1):
        above += term
        if above * clients << (bits + 1) > allowed:
            return count
        term = _one_less(term, count, (clients, neighbours, corrupt))
    return 0


def _one_less(term: int, count: int, sizes: tuple[int, int, int]) -> int:
    clients, neighbours, corrupt = sizes
    rest = clients - corrupt - neighbours + count
    return term * count * rest // ((corrupt - count + 1) * (neighbours - count + 1))
