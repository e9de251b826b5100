"""Who may add which report, as the database decides; each process's part is played by a few calls."""

import contextlib
from collections import Counter

import pytest

from fedlm.fl_core.deployment.aggregators.shared_records import PartialSum, Selection, SharedRound
from fedlm.fl_core.deployment.aggregators.shared_rounds import SharedRounds
from fedlm.fl_core.deployment.server.round_rules import RoundRules
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state import SILENT_ONCE, AttemptRecord, SeenClient, StateError
from fedlm.fl_core.deployment.state.state_sql import SqlState, sqlite_url

ATTEMPT = AttemptRecord("bb", 0, "abandoned", "", 0.0, 1.0, 5, 3, 0, 0, 0, 0)

ROUND = SharedRound(
    token="aa",
    round_number=0,
    seed=0,
    learning_rate=1.0,
    clip_norm=None,
    to_select=3,
    minimum=2,
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
            assert shared.select("aa", number, 1) == Selection(True)
        yield shared


def sum_of(aggregator, reports):
    return PartialSum("aa", aggregator, "digest", reports, 1, 1, 1)


def test_a_report_is_claimed_once_wherever_it_is_sent(rounds):
    assert rounds.claim("aa", 0, "a", b"1") == "taken"
    assert rounds.claim("aa", 0, "a", b"1") == "mine"
    assert rounds.claim("aa", 0, "b", b"1") == "elsewhere"
    assert rounds.claim("aa", 0, "b", b"2") == "answered"
    assert rounds.claim("aa", 1, "b", b"1") == "taken"
    assert rounds.claim("aa", 2, "b", b"1") == "taken"


def test_no_report_is_claimed_after_the_round_is_closed_and_no_sum_delivered_before(rounds):
    assert rounds.claim("aa", 0, "a", b"1") == "taken"
    assert not rounds.deliver(sum_of("a", 1), [0])
    rounds.advance("aa", "closed", 0.0)
    assert rounds.claim("aa", 1, "a", b"1") == "late"
    assert rounds.select("aa", 1, 1) == Selection(False)
    assert rounds.deliver(sum_of("a", 1), [0])
    assert rounds.claimed("aa") == [0]


def test_an_aggregator_that_leaves_hands_over_before_the_end_and_claims_nothing_after(rounds):
    assert rounds.claim("aa", 0, "a", b"1") == "taken"
    assert rounds.deliver(sum_of("a", 1), [0], leaving=True)
    assert rounds.claim("aa", 1, "a", b"1") == "late"
    assert rounds.claim("aa", 1, "b", b"1") == "taken"
    assert rounds.tally("aa").delivered == {"a"}
    rounds.advance("aa", "closed", 0.0)
    assert rounds.deliver(sum_of("b", 1), [1])
    assert [one.aggregator for one in rounds.partial_sums("aa")] == ["a", "b"]


def test_what_is_lost_is_in_no_sum_and_may_be_sent_again(rounds):
    assert rounds.claim("aa", 0, "a", b"1") == "taken"
    assert rounds.lose("a") == 1
    assert not rounds.beat("a")
    assert rounds.claim("aa", 1, "a", b"1") == "late", "an aggregator that is lost claimed a report"
    assert rounds.claim("aa", 0, "b", b"1") == "taken"
    rounds.advance("aa", "closed", 0.0)
    assert not rounds.deliver(sum_of("a", 1), [0])
    with pytest.raises(StateError, match="had no right to add"):
        rounds.deliver(sum_of("b", 2), [0, 1])
    assert rounds.deliver(sum_of("b", 1), [0])


RULES = RoundRules(goal=4, minimum=3, over_selection=1.0, selection_seconds=10.0, reporting_seconds=10.0)


def no_rest(population):
    return 0.0


def gathering(tmp_path):
    database = Database(sqlite_url(tmp_path / "state.db"))
    return contextlib.closing(database), SharedRounds(database)


@pytest.mark.long
def test_who_polls_most_in_several_processes_is_drawn_no_more_often(tmp_path):
    """He is drawn with probability 4 / 16 in each of 150 rounds: more than 64 times with probability 1e-6."""
    drawn, closing_both = Counter(), contextlib.ExitStack()
    with closing_both:
        processes = []
        for _ in range(2):
            closing, shared = gathering(tmp_path)
            closing_both.enter_context(closing)
            processes.append(shared)
        numbers = processes[0].number_clients([f"client{one}" for one in range(16)])
        for round_number in range(150):
            token = f"{round_number:02x}"
            processes[0].open(ROUND._replace(token=token, round_number=round_number, phase="gathering", to_select=4))
            for number in (*[numbers["client0"]] * 8, *numbers.values()):
                shared = processes[(number + round_number) % 2]
                assert shared.select(token, number, 1) == Selection(False, drawn_later=True)
            processes[1].draw(token, RULES, no_rest)
            drawn.update(processes[0].silent(token))
            processes[0].begin()
    assert sum(drawn.values()) == 150 * RULES.to_select
    assert drawn[0] <= 64
    # Each of the others leaves this range with probability 2e-6.
    assert all(15 <= count <= 64 for count in drawn.values())


def test_a_client_that_one_process_asked_back_is_early_at_another_until_the_clock_says_so(tmp_path):
    closing, shared = gathering(tmp_path)
    with closing:
        state = SqlState(shared._database)
        state.claim("run")
        shared.open(ROUND)
        state.record_check_ins([SeenClient(0, "ann", "", 1, 0.0, rest=5.0), SeenClient(1, "bob", "", 1, 0.0)])
        assert shared.seconds_early(["ann", "bob"]) == {"ann": 5.0}
        shared.advance("aa", "selecting", 9.0, passed=4.0)
        assert shared.seconds_early(["ann", "bob"]) == {"ann": 1.0}
        shared.advance("aa", "selecting", 9.0, passed=2.0)
        assert shared.seconds_early(["ann", "bob"]) == {}


def test_who_was_silent_twice_is_drawn_last_and_others_are_let_in_beside_him(tmp_path):
    closing, shared = gathering(tmp_path)
    with closing:
        numbers = list(shared.number_clients([f"client{one}" for one in range(5)]).values())
        state = SqlState(shared._database)
        state.record_attempt(ATTEMPT, [], silent=numbers)
        assert {one.late_until for one in state.clients()} == {SILENT_ONCE}
        state.record_attempt(ATTEMPT._replace(token="cc"), numbers[2:], silent=numbers[:2])
        assert [one.late_until for one in state.clients()] == [9, 9, 0, 0, 0]
        shared.open(ROUND._replace(round_number=1, phase="gathering", to_select=4, minimum=3))
        for number in numbers:
            shared.select("aa", number, 1)
        shared.draw("aa", RULES, no_rest)
        assert shared.silent("aa") == numbers[2:]
        # The others suffice for a round that counts; where they do not, he may come.
        assert shared.select("aa", numbers[0], 1) == Selection(False)
        shared.settle("aa", {numbers[2]: "declined"}, "a")
        assert shared.select("aa", numbers[0], 1) == Selection(True)
        shared.let_in("aa", 4, "selecting")
        assert shared.select("aa", shared.number_clients(["new"])["new"], 1) == Selection(True)


def test_who_was_drawn_together_or_was_not_rests_alike_whoever_answered_first(tmp_path):
    closing, shared = gathering(tmp_path)
    with closing:
        state = SqlState(shared._database)
        state.claim("run")
        identities = [f"client{one}" for one in range(6)]
        numbers = shared.number_clients(identities)
        shared.open(ROUND._replace(phase="gathering", to_select=4))
        for number in numbers.values():
            shared.select("aa", number, 1)
        shared.draw("aa", RULES, lambda population: 5.0)
        drawn = {identities[one] for one in shared.silent("aa")}
        assert shared.seconds_early(identities) == dict.fromkeys(set(identities) - drawn, 5.0)
        # The one that answered first was asked back, and its process writes that down late.
        early = numbers[min(drawn)]
        shared.finish(ATTEMPT._replace(token="aa", outcome="finished"), [early], [], lambda population: 7.0)
        state.record_check_ins([SeenClient(early, min(drawn), "", 1, 0.0, rest=1.0)])
        assert shared.seconds_early(identities) == dict.fromkeys(identities, 5.0) | dict.fromkeys(drawn, 7.0)


def test_others_are_drawn_beside_who_is_silent(tmp_path):
    closing, shared = gathering(tmp_path)
    with closing:
        first, *others = shared.number_clients([f"client{one}" for one in range(12)]).values()
        shared.open(ROUND)
        assert shared.select("aa", first, 1) == Selection(True)
        shared.let_in("aa", 4, "gathering")
        assert shared.select("aa", first, 1) == Selection(True), "who was drawn before is not drawn again"
        for number in others:
            assert shared.select("aa", number, 1) == Selection(False, drawn_later=True)
        shared.draw("aa", RULES, no_rest)
        assert len(shared.silent("aa")) == 4
        assert first in shared.silent("aa")
        assert shared.tally("aa").phase == "reporting"


def test_a_check_in_for_the_draw_costs_the_same_however_many_came_before(tmp_path):
    """Counted in tens of steps of SQLite's virtual machine, not in time."""
    closing, shared = gathering(tmp_path)
    steps = Counter()
    with closing as database:
        shared.open(ROUND._replace(phase="gathering", to_select=100))
        numbers = list(shared.number_clients([f"client{one}" for one in range(120)]).values())
        connected = database._engine.raw_connection()
        which = [0]
        connected.driver_connection.set_progress_handler(lambda: steps.update(which), 10)
        # The pool gives the connection with the handler to each of the transactions below.
        connected.close()
        for which[0], number in enumerate(numbers):
            assert shared.select("aa", number, 1).drawn_later
            assert shared.select("aa", number, 1).drawn_later
    assert 0 < steps[119] <= 2 * steps[10]
