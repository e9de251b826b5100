"""When a client may take part again, and when it is told that it never will."""

from types import SimpleNamespace

import pytest

from fedlm.fl_core.deployment.server.client_registry import ClientRegistry, OtherRuns, final_rest
from fedlm.fl_core.deployment.state.state import ClientRecord
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation


def registry(last_round, participations, most=2, separation=3, saved_every=1):
    records = [ClientRecord(0, "ann", last_round, participations)]
    bound = BoundedParticipation(max_participations=most, min_separation=separation)
    return ClientRegistry(SimpleNamespace(clients=lambda: records), bound, saved_every)


@pytest.mark.parametrize(("round_number", "rest"), [(5, 2), (6, 1), (7, 0), (9, 0)])
def test_a_client_rests_between_its_rounds(round_number, rest):
    assert registry(4, 1).rounds_to_rest(0, round_number, True) == rest
    assert registry(None, 0).rounds_to_rest(0, round_number, True) == 0


@pytest.mark.parametrize(("elsewhere", "rest"), [(0, 0), (1, 0), (2, None)])
def test_a_client_that_gave_other_runs_all_that_was_promised_rests_for_good(elsewhere, rest):
    state = SimpleNamespace(clients=lambda: [ClientRecord(0, "ann", None, 0)])
    one = ClientRegistry(state, BoundedParticipation(), 1, OtherRuns(2, {"ann": elsewhere}))
    assert one.rounds_to_rest(0, 5, True) == rest
    one.took_part([0], 5)
    assert one.rounds_to_rest(0, 7, True) == (0 if elsewhere == 0 else None)


def test_a_clients_part_is_over_only_when_its_last_round_is_on_disk():
    """Until then a crash would undo that round, and the client might be needed again."""
    assert registry(4, 2).rounds_to_rest(0, 5, is_open=True) is None
    # The sum of round 4 is there, but its model not yet.
    assert registry(4, 2).rounds_to_rest(0, 5, is_open=False) == 1
    every_ten = [final_rest(4, rounds, 10) for rounds in (4, 5, 9, 10, 11)]
    assert every_ten == [10, 10, 10, None, None]
    assert final_rest(10, 10, 10) == 10
