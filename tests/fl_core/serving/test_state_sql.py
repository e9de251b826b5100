import pytest

from fl_core.serving.state import AttemptRecord, ReleaseRecord, SeenClient, StateError
from fl_core.serving.state_sql import SqlState, sqlite_url


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.db"


@pytest.fixture
def state(path):
    state = SqlState(sqlite_url(path))
    yield state
    state.close()


def seen(number, check_ins=1):
    return SeenClient(number, f"client{number}", "0.1", check_ins, 5.0)


def attempt(round_number, outcome="finished", token=None):
    token = token or f"{round_number}{outcome}"
    return AttemptRecord(token, round_number, outcome, "", 0.0, 1.5, 4, 3, 1, 0, 10_000_000_000, 5)


def test_what_was_recorded_is_there_after_a_restart(state, path):
    state.claim("run")
    state.record_check_ins([seen(0), seen(1), seen(7)])
    state.record_check_ins([seen(1, 3)])
    state.record_attempt(attempt(0), [1, 7])
    state.record_attempt(attempt(1, "abandoned"), [])
    state.record_attempt(attempt(1), [0, 1])
    state.record_release(ReleaseRecord(1, "digest", 9.0))
    state.record_release(ReleaseRecord(1, "digest", 9.5))
    state.close()
    again = SqlState(sqlite_url(path))
    again.claim("run")
    assert [client[2:] for client in again.clients()] == [(1, 1), (1, 2), (0, 1)]
    assert again.finished_rounds() == 2
    assert again.attempts(2) == [attempt(1, "abandoned"), attempt(1)]
    again.close()


def test_rounds_that_were_not_released_are_forgotten_with_who_took_part(state):
    state.record_check_ins([seen(0), seen(1)])
    for number in range(3):
        state.record_attempt(attempt(number), [number % 2])
    state.forget_rounds(1)
    assert state.finished_rounds() == 1
    assert [client[2:] for client in state.clients()] == [(0, 1), (None, 0)]
    assert [one.outcome for one in state.attempts(9)] == ["finished", "abandoned", "abandoned"]


def test_an_attempt_that_is_recorded_twice_counts_once(state):
    state.record_check_ins([seen(0)])
    state.record_attempt(attempt(0), [0])
    state.record_attempt(attempt(0), [0])
    assert len(state.attempts(9)) == 1


def test_who_is_not_known_cannot_have_taken_part_and_nothing_is_half_recorded(state):
    with pytest.raises(StateError, match="cannot be read or written"):
        state.record_attempt(attempt(0), [99])
    assert state.attempts(9) == []


def test_the_state_of_another_run_is_refused(state):
    state.claim("one")
    with pytest.raises(StateError, match="another run"):
        state.claim("two")


def test_a_database_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(StateError, match="nowhere"):
        SqlState(sqlite_url(tmp_path / "nowhere" / "state.db"))
