import logging

import pytest

from benchmarks.privacy.histories.faults import FAULTS
from benchmarks.privacy.histories.running import stores
from benchmarks.privacy.histories.seams import remember_epsilons
from benchmarks.privacy.histories.world import draw_history, run_history

# Found in the first histories with them, which takes little time.
QUICK_FAULTS = {"init_from_forgets": 10, "clip_norm_twice": 10, "vocabulary_is_covered": 10, "list_of_anything": 10}


@pytest.fixture(scope="module")
def made():
    # The libraries of accounting say which orders they leave out.
    logging.disable(logging.WARNING)
    with stores() as imported, remember_epsilons():
        yield imported
    logging.disable(logging.NOTSET)


def wrong_in(made, seeds, **options):
    return [(seed, *found) for seed in seeds if (found := run_history(made, draw_history(seed), **options))]


def test_whatever_an_operator_does_every_statement_is_at_least_what_was_released(made):
    assert wrong_in(made, range(6)) == []


@pytest.mark.long
@pytest.mark.parametrize("fault", QUICK_FAULTS)
def test_a_known_fault_is_found(made, fault):
    with FAULTS[fault].put_in():
        assert any(run_history(made, draw_history(seed)) for seed in range(QUICK_FAULTS[fault]))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_known_fault_takes_the_place_of_what_is_there(fault):
    with FAULTS[fault].put_in():
        pass


@pytest.mark.parametrize(
    "seeds",
    [pytest.param(range(6, 60), marks=pytest.mark.long), pytest.param(range(60, 300), marks=pytest.mark.thorough)],
)
@pytest.mark.timeout(3600)
def test_many_histories(made, seeds):
    assert wrong_in(made, seeds) == []


@pytest.mark.parametrize(
    "seeds", [pytest.param(range(4), marks=pytest.mark.long), pytest.param(range(4, 40), marks=pytest.mark.thorough)]
)
@pytest.mark.timeout(1800)
def test_histories_whose_checkpoints_are_stored_by_orbax(made, seeds):
    assert wrong_in(made, seeds, stored_by_orbax=True) == []
