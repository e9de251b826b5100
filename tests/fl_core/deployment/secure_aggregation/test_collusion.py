"""A third of the members tell the server all that they know, and it tells the others two stories of who survived."""

import pytest

from fedlm.fedlm_client.errors import UnsafeSumError
from fedlm.fedlm_client.secure_aggregation import shamir
from fedlm.fedlm_client.secure_aggregation.floors import Floors
from fedlm.fl_core.deployment.secure_aggregation.parameter_rule import Strangers, choose_graph
from tests.support import secure_cohorts as cohorts

COUNT, CORRUPT, VICTIM = 24, 8, 23
FLOORS = Floors(least_cohort=3, corrupt_share=1 / 3, dropped_share=0.0)


@pytest.fixture(scope="module")
def cohort():
    graph = choose_graph(COUNT, Strangers(1 / 3, 0.0))
    return cohorts.Cohort(COUNT, cohorts.rules(COUNT, graph=graph, length=8), floors=FLOORS).deal().mask()


def test_one_of_the_secrets_stays_unknown_however_the_honest_are_divided(cohort):
    threshold, victim, honest = cohort.parameters.threshold, cohort.members[VICTIM], range(CORRUPT, VICTIM)
    # The corrupt ones tell both shares of the victim.
    own = {one + 1: cohort.members[one]._shares[VICTIM][: shamir.SHARE_BYTES] for one in range(CORRUPT)}
    keys = {one + 1: cohort.members[one]._shares[VICTIM][shamir.SHARE_BYTES :] for one in range(CORRUPT)}
    everybody = frozenset(range(COUNT))
    for one in honest:
        dead = one % 2
        revealed = cohort.members[one].reveal(everybody - {VICTIM} if dead else everybody)
        (keys if dead else own)[one + 1] = (revealed.masking_keys if dead else revealed.own_masks)[VICTIM]
    secrets = (victim._own_mask, victim._masking.private_bytes_raw())
    found = [
        shamir.value_at(shares, 0) == int.from_bytes(one, "big")
        for shares, one in zip((own, keys), secrets, strict=True)
    ]
    assert (len(own), len(keys), found) == (CORRUPT + 8, CORRUPT + 7, [True, False])
    for dead in range(len(honest) + 1):
        assert min(CORRUPT + dead, CORRUPT + len(honest) - dead) < threshold


def test_a_lower_threshold_with_which_both_would_be_known_is_refused(cohort):
    low = cohort.parameters._replace(threshold=cohort.parameters.threshold - 1)
    one = cohorts.member(0, floors=FLOORS)
    members = (one.advertise(), *cohort.roster.members[1:])
    with pytest.raises(UnsafeSumError, match="shares that give a secret back"):
        one.deal(cohort.roster._replace(parameters=low, members=members))
