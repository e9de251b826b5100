"""Who may add which report, as the database decides; each process's part is played by a few calls."""

import contextlib
from collections import Counter

import pytest

from fedlm.fl_core.deployment.aggregators.shared_records import PartialSum, Selection, SharedRound
from fedlm.fl_core.deployment.aggregators.shared_rounds import SharedRounds
from fedlm.fl_core.deployment.server.round_rules import RoundRules
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state import AttemptRecord, SeenClient, StateError
from fedlm.fl_core.deployment.state.state_sql import SqlState, sqlite_url

ATTEMPT = AttemptRecord("bb", 0, "abandoned", "", 0.0, 1.0, 5, 3, 0, 0, 0, 0)

ROUND = SharedRound(
    token="aa",
    round_number=0,
    seed=0,
    learning_rate=1.0,
    clip_norm=None,
    goal=2,
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
    assert rounds.claim("aa", 2, "b", b"1") == "late", "more than the goal"


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
    with pytest.raises(StateError, match="holds other reports"):
        rounds.deliver(sum_of("b", 2), [0, 1])
    assert rounds.deliver(sum_of("b", 1), [0])


RULES = RoundRules(goal=4, minimum=3, over_selection=1.0, selection_seconds=10.0, reporting_seconds=10.0)


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
            processes[0].open(ROUND._replace(token=token, round_number=round_number, phase="gathering"))
            for number in (*[numbers["client0"]] * 8, *numbers.values()):
                shared = processes[(number + round_number) % 2]
                assert shared.select(token, number, 1) == Selection(False, drawn_later=True)
            processes[1].draw(token, RULES)
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


def test_who_was_silent_is_drawn_last_and_others_are_let_in_beside_him(tmp_path):
    closing, shared = gathering(tmp_path)
    with closing:
        numbers = list(shared.number_clients([f"client{one}" for one in range(5)]).values())
        SqlState(shared._database).record_attempt(ATTEMPT, [], silent=numbers[:2])
        shared.open(ROUND._replace(round_number=1, phase="gathering", to_select=4, minimum=3))
        for number in numbers:
            shared.select("aa", number, 1)
        shared.draw("aa", RULES)
        assert shared.silent("aa") == numbers[2:]
        # The others suffice for a round that counts; where they do not, he may come.
        assert shared.select("aa", numbers[0], 1) == Selection(False)
        shared.settle("aa", {numbers[2]: "declined"}, "a")
        assert shared.select("aa", numbers[0], 1) == Selection(True)
        shared.let_in("aa", 4)
        assert shared.select("aa", shared.number_clients(["new"])["new"], 1) == Selection(True)


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
