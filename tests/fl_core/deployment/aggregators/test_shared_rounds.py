"""Who may add which report, as the database decides; each process's part is played by a few calls."""

import contextlib

import pytest

from fedlm.fl_core.deployment.aggregators.shared_records import PartialSum, SharedRound
from fedlm.fl_core.deployment.aggregators.shared_rounds import SharedRounds
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state import StateError
from fedlm.fl_core.deployment.state.state_sql import sqlite_url

ROUND = SharedRound(
    token="aa",
    round_number=0,
    seed=0,
    learning_rate=1.0,
    clip_norm=None,
    goal=2,
    to_select=3,
    min_separation=1,
    max_participations=None,
    agreement="",
    parameters="",
    phase="selecting",
    seconds_left=10.0,
)


@pytest.fixture
def rounds(tmp_path):
    """A round with three clients, 0 to 2, and two aggregators, `a` and `b`."""
    with contextlib.closing(Database(sqlite_url(tmp_path / "state.db"))) as database:
        shared = SharedRounds(database)
        shared.open(ROUND)
        shared.join("a")
        shared.join("b")
        for number in shared.number_clients(["ann", "bob", "eve"]).values():
            assert shared.select("aa", number, 1) == (True, 0)
        yield shared


def sum_of(aggregator, reports):
    return PartialSum("aa", aggregator, "digest", reports, 1, 1, 1)


def test_a_report_is_claimed_once_wherever_it_is_sent(rounds):
    assert rounds.claim("aa", 0, "a", b"1") == "taken"
    assert rounds.claim("aa", 0, "a", b"1") == "mine"
    assert rounds.claim("aa", 0, "b", b"1") == "elsewhere"
    assert rounds.claim("aa", 0, "b", b"2") == "answered"
    assert rounds.claim("aa", 1, "b", b"1") == "taken"
    assert rounds.claim("aa", 2, "b", b"1") == "late", "more than the goal"


def test_no_report_is_claimed_after_the_round_is_closed_and_no_sum_delivered_before(rounds):
    assert rounds.claim("aa", 0, "a", b"1") == "taken"
    assert not rounds.deliver(sum_of("a", 1), [0])
    rounds.advance("aa", "closed", 0.0)
    assert rounds.claim("aa", 1, "a", b"1") == "late"
    assert rounds.select("aa", 1, 1) == (False, 0)
    assert rounds.deliver(sum_of("a", 1), [0])
    assert rounds.claimed("aa") == [0]


def test_what_is_lost_is_in_no_sum_and_may_be_sent_again(rounds):
    assert rounds.claim("aa", 0, "a", b"1") == "taken"
    assert rounds.lose("a") == 1
    assert not rounds.beat("a")
    assert rounds.claim("aa", 1, "a", b"1") == "late", "an aggregator that is lost claimed a report"
    assert rounds.claim("aa", 0, "b", b"1") == "taken"
    rounds.advance("aa", "closed", 0.0)
    assert not rounds.deliver(sum_of("a", 1), [0])
    with pytest.raises(StateError, match="holds other reports"):
        rounds.deliver(sum_of("b", 2), [0, 1])
    assert rounds.deliver(sum_of("b", 1), [0])
