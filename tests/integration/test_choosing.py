"""The numbers by which the page tells people to choose a mechanism and a cohort are those of the accountant."""

import re
from pathlib import Path

import numpy as np
import pytest

import fedlm
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.participation.sampling import PoissonParticipation
from fedlm.fl_core.privacy.promise.plan import plan_noise

PAGE = (Path(__file__).parents[2] / "docs" / "choose.md").read_text()
ROUNDS, EPSILON, DELTA, PARAMETERS = 300, 4.0, 1e-6, 1_000_000
TURNS = (1, 3, 10, 30)


def row(beginning):
    (line,) = re.findall(rf"^\| {re.escape(beginning)}.*", PAGE, re.MULTILINE)
    return [cell.strip() for cell in line.split("|")[2:-1]]


def prefix_noise(mechanism, participation, epsilon=EPSILON):
    """The standard deviation of the noise in the sum of all rounds so far, in clip norms, float64 [rounds]."""
    plan = fedlm.calibrate(plan_noise(mechanism, ROUNDS, participation), DELTA, epsilon=epsilon)
    return plan.noise_multiplier * np.sqrt(fedlm.MECHANISMS[mechanism].prefix_variance(plan))


def shown(noise):
    return f"{np.sqrt(np.mean(noise**2)):.1f}"


def signal_to_noise(people, turns, noise):
    return people * turns / (noise[-1] * PARAMETERS**0.5)


@pytest.mark.parametrize("mechanism", ["gaussian", "tree", "tree_honaker", "bisr"])
def test_noise_of_bounded_participation(mechanism):
    computed = [shown(prefix_noise(mechanism, BoundedParticipation(turns, ROUNDS // turns))) for turns in TURNS]
    assert computed == row(f"`{mechanism}`, `min_separation`")


def test_noise_of_poisson_cohorts_and_what_thirty_turns_give():
    noises = [prefix_noise("gaussian", PoissonParticipation(turns / ROUNDS)) for turns in TURNS]
    assert [shown(noise) for noise in noises] == row("`gaussian`, `poisson`")
    for people in (1_000, 10_000, 100_000, 1_000_000):
        assert float(row(f"{people:,} |")[3]) == pytest.approx(signal_to_noise(people, 30, noises[3]), rel=0.02)


def test_from_how_many_turns_on_poisson_cohorts_have_less_noise():
    blt = [float(cell) for cell in row("`blt`, `min_separation`")]
    said = re.findall(r"(\d+)(?: of 300 rounds)? at epsilon = (\d)", re.search(r"so many turns on: (.*)", PAGE)[1])
    assert len(said) == 4
    for turns, epsilon in said:
        # Every mechanism of bounded participation is one Gaussian mechanism, so that its noise follows epsilon alike.
        one, base = (prefix_noise("gaussian", BoundedParticipation(1), float(e))[-1] for e in (epsilon, EPSILON))
        poisson = [prefix_noise("gaussian", PoissonParticipation(n / ROUNDS), float(epsilon)) for n in TURNS]
        less = [np.sqrt(np.mean(noise**2)) < of_blt * one / base for noise, of_blt in zip(poisson, blt, strict=True)]
        assert less == [n >= int(turns) for n in TURNS]


@pytest.mark.long
def test_noise_of_blt_and_what_one_turn_gives():
    noise = prefix_noise("blt", BoundedParticipation(1, ROUNDS))
    assert shown(noise) == row("`blt`, `min_separation`")[0]
    assert float(row("1,000 |")[0]) == pytest.approx(signal_to_noise(1_000, 1, noise), rel=0.02)
