"""The audit of mechanisms: it finds nothing in them, and finds what is made wrong on purpose.

Each measurement of a right mechanism is found wrong with a probability of 1e-6.
"""

import json

import pytest

from benchmarks.privacy.mechanism_audit import (
    BOUNDS,
    CENTRAL,
    RESULTS,
    ROUNDS,
    Case,
    Faults,
    audit,
    audit_adaptive,
    audit_poisson,
    audit_turns,
    calibrated,
    cases,
    judged,
    standard_errors_for,
)
from fedlm.fl_core.privacy.mechanisms.tree import Trees
from tests.fl_core.privacy.mechanisms.noise_matrices import plan_of

TRIALS = 60_000
ERRORS = standard_errors_for(1e-6, 1)
SEVERAL = BOUNDS[1]


def case_of(name, bound=SEVERAL, cuts=(), **changes):
    return Case(name, calibrated(plan_of(name, ROUNDS, 1.0, bound, **changes)), cuts)


@pytest.mark.long
@pytest.mark.parametrize("name", CENTRAL)
def test_noise_lets_through_what_is_accounted(name):
    result = judged(audit(case_of(name), TRIALS), ERRORS)
    assert not result["found_wrong"], result
    assert result["tolerance"] < 0.03


@pytest.mark.parametrize(
    "case",
    [
        case_of("tree", own=Trees(5)),
        case_of("tree_honaker", own=Trees(5, complete_trees=True)),
        case_of("banded", cuts=(5,)),
    ],
    ids=["restarts", "completed", "a new secret"],
)
def test_noise_that_begins_anew(case):
    assert not judged(audit(case, TRIALS), ERRORS)["found_wrong"]


# Half of a fault is found by four times the trials.
FAULTS = [(1, 0.94), pytest.param(4, 0.97, marks=pytest.mark.thorough)]


@pytest.mark.parametrize(
    ("name", "times", "scale"),
    [
        ("gaussian", 1, 0.94),
        pytest.param("gaussian", 4, 0.97, marks=pytest.mark.thorough),
        *(pytest.param(name, 1, 0.94, marks=pytest.mark.long) for name in ("tree", "blt")),
    ],
)
def test_too_little_noise_is_found(name, times, scale):
    assert judged(audit(case_of(name), times * TRIALS, Faults(noise_scale=scale)), ERRORS)["found_wrong"]


@pytest.mark.parametrize(
    "name", [pytest.param("gaussian", marks=pytest.mark.long), "tree", pytest.param("blt", marks=pytest.mark.long)]
)
def test_a_pattern_that_is_not_accounted_is_found(name):
    assert judged(audit(case_of(name, BOUNDS[0]), TRIALS, Faults(participation=SEVERAL)), ERRORS)["found_wrong"]


@pytest.mark.long
@pytest.mark.parametrize(("times", "scale"), FAULTS)
def test_sampled_rounds_have_the_accounted_profile(times, scale):
    trials = times * TRIALS * 5 // 2
    result = judged(audit_poisson(trials), ERRORS)
    assert not result["found_wrong"], result
    assert judged(audit_poisson(trials, Faults(noise_scale=scale)), ERRORS)["found_wrong"]


@pytest.mark.long
@pytest.mark.parametrize(("times", "scale"), [(1, 0.9), pytest.param(4, 0.95, marks=pytest.mark.thorough)])
def test_units_that_take_turns_have_the_accounted_profile(times, scale):
    result = judged(audit_turns(times * TRIALS), ERRORS)
    assert not result["found_wrong"], result
    assert judged(audit_turns(times * TRIALS, Faults(noise_scale=scale)), ERRORS)["found_wrong"]


@pytest.mark.long
def test_the_count_of_adaptive_clipping_is_accounted():
    result = audit_adaptive(6_000)
    assert not judged(result, ERRORS)["found_wrong"], result
    # The count's part of the accounted mu is half of its square.
    without_count = dict.fromkeys(("accounted_mu", "linear_mu"), result["accounted_mu"] / 2**0.5)
    assert judged(result | without_count, ERRORS)["found_wrong"]


def test_committed_measurements_are_of_what_is_there():
    record = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert not record["found_wrong"]
    assert set(record["results"]) == {
        case.name for case in cases(lambda name, bound: plan_of(name, ROUNDS, 1.0, bound))
    } | {
        "gaussian, Poisson",
        "banded, units that take turns",
        "gaussian, adaptive clipping",
    }
    assert all(result["tolerance"] < 0.025 for result in record["results"].values())
    machine = {"jax", "jaxlib", "numpy", "python"}
    assert machine <= record["machine"].keys()
