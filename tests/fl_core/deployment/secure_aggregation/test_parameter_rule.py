"""Neighbours and thresholds: the published values, and their meaning by exact sums."""

import math
from fractions import Fraction

import pytest

from fedlm.fedlm_client.secure_aggregation.graph_rule import corrupt_neighbours
from fedlm.fl_core.deployment.secure_aggregation.parameter_rule import Strangers, choose_graph
from fedlm.fl_core.errors import ConfigurationError

TABLE = {
    (0.05, 0.05): [(16, 11), (52, 37), (62, 44)],
    (0.05, 0.10): [(26, 16), (78, 52), (92, 61)],
    (0.10, 0.10): [(32, 22), (96, 67), (118, 82)],
    (0.10, 0.20): [(52, 32), (194, 124), (266, 170)],
    (0.20, 0.20): [(62, 42), (302, 206), (458, 312)],
    (0.33, 0.10): [(54, 44), (218, 171), (296, 231)],
}


def tail(above, population, marked, drawn):
    """P[more than `above` of the drawn are marked]."""
    ways = (math.comb(marked, one) * math.comb(population - marked, drawn - one) for one in range(above + 1, drawn + 1))
    return Fraction(sum(ways), math.comb(population, drawn))


def test_graphs_are_those_of_the_table():
    for strangers, graphs in TABLE.items():
        assert [choose_graph(clients, Strangers(*strangers)) for clients in (100, 1000, 6500)] == graphs


def test_neither_both_secrets_are_found_nor_one_is_lost_by_exact_sums():
    clients, corrupt = 1000, 50
    neighbours, threshold = choose_graph(clients, Strangers())
    among = corrupt_neighbours(clients, neighbours, corrupt)
    assert tail(among, clients, corrupt, neighbours) <= Fraction(1, clients << 41)
    assert tail(among - 1, clients, corrupt, neighbours) > Fraction(1, clients << 41)
    # The honest neighbours, split between two stories, and the corrupt ones in both.
    assert 2 * (threshold - among) > neighbours - among
    assert tail(neighbours - threshold, clients, 100, neighbours) <= Fraction(1, clients << 20)


@pytest.mark.parametrize("clients", [5, 40, 63])
def test_a_small_cohort_is_a_complete_graph_in_which_two_stories_need_more_shares_than_there_are(clients):
    neighbours, threshold = choose_graph(clients, Strangers())
    corrupt, dropped = math.floor(0.05 * clients), math.floor(0.1 * clients)
    assert neighbours == clients - 1
    assert 2 * (threshold - corrupt) > neighbours - corrupt
    assert threshold <= neighbours - dropped


def test_too_many_strangers_are_refused():
    with pytest.raises(ConfigurationError, match="no secure sum of 50 clients, of whom 25 may be corrupt"):
        choose_graph(50, Strangers(0.5, 0.3))
