"""A third of the members and the server put together all that they have, and look for the update of one honest member.

The server is honest but curious: it keeps every message. Members drop out at random. Measured are the words that are
left of the member's vector once all known masks are off: the update, or uniform noise.
"""

import numpy as np
import pytest

from fedlm.fedlm_client.secure_aggregation.floors import Floors
from fedlm.fl_core.deployment.secure_aggregation.parameter_rule import Strangers, choose_graph
from tests.clients.fedlm_client.secure_aggregation.test_masks import uniform
from tests.support import lies
from tests.support import secure_cohorts as cohorts

SHARE, BITS, LENGTH, PLANTED = 1 / 3, 10, 1 << 15, 3
COHORTS = {24: (12, 6), 60: (2, 8), 100: (1, 1)}  # repetitions, and members that drop out at most
MESSAGES = ("shares", "vector", "late", "agree", "reveal")
FALSE_ALARMS = 1e-9
"""Of one vector. The keys are other ones in each run, which looks at some 300 vectors."""


class Curious(lies.Honest):
    """No lie. A vector that is late comes, but its member is said to have dropped out."""

    def survivors(self, one):
        return [other for other in super().survivors(one) if self.gone.get(other) != "late"]


def curious(count, traitors, gone):
    graph = choose_graph(count, Strangers(SHARE, 0.1))
    rules = cohorts.rules(count, graph=graph, bits=BITS, length=LENGTH, largest=PLANTED, least_cohort=10)
    server = Curious(rules, count, traitors, Floors(10, SHARE, 0.1))
    server.gone = gone
    # What is looked for is the most that a client can tell: each number its largest.
    server.integers[list(server.honest)] = PLANTED
    return server


def drawn_dropouts(drawn, count, most):
    honest = range(count // 3, count)
    gone = drawn.choice(honest, drawn.integers(most + 1), replace=False)
    return {int(one): MESSAGES[drawn.integers(len(MESSAGES))] for one in gone}


@pytest.mark.long
@pytest.mark.parametrize("count", COHORTS)
def test_a_third_of_the_members_and_the_server_see_noise_of_each_other_one_and_the_sum(count):
    repetitions, most = COHORTS[count]
    drawn, sums = np.random.default_rng(count), 0
    for _ in range(repetitions):
        gone = drawn_dropouts(drawn, count, most)
        server = curious(count, count // 3, gone)
        found = server.attack()
        unseen = {one for one, message in gone.items() if message in MESSAGES[:3]}
        survivors = frozenset(set(server.honest) - unseen)
        assert found.keys() <= {survivors}
        assert all(np.array_equal(total, server.plain(group)) for group, total in found.items())
        sums += len(found)
        residues, _ = server.unmasked()
        assert len(residues) == len(survivors) + list(gone.values()).count("late")
        for residue in residues.values():
            assert uniform((residue - PLANTED) % (1 << BITS), BITS, FALSE_ALARMS)
    assert 2 * sums >= repetitions, "members refuse few sums"


@pytest.mark.long
def test_as_many_members_as_shares_give_a_secret_back_see_every_update():
    """The attack is real: with all that it needs, it finds each member's update, also of one that dropped out."""
    count, least = 24, choose_graph(24, Strangers(SHARE, 0.1))[1]
    for traitors in (least - 1, least):
        gone = {22: "late", 23: "vector"}
        server = curious(count, traitors, gone)
        server.attack()
        residues, _ = server.unmasked()
        found = {one for one, residue in residues.items() if (residue == PLANTED).all()}
        assert found == (set(range(least, count - 1)) if traitors == least else set())
