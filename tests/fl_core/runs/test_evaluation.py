"""What an evaluation says: its intervals hold as often as they say, and its noise is as large as they take it for."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fl_core.client_algorithms.evaluate import Evaluate
from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.private_rounds import PrivateAggregation, PrivateRounds
from fedlm.fl_core.privacy.promise.plan import plan_noise
from fedlm.fl_core.rounds.aggregation import empty_aggregate
from fedlm.fl_core.runs.evaluation import BETTER, NOT_DECIDED, WORSE, Interval, evaluation_of

LARGEST = 8.0


def rows_of(losses, noise, rng, rounds=1):
    """The rows of rounds in which devices with these losses took part."""
    rows = []
    for cohort in np.array_split(losses, rounds):
        told = np.stack([np.ones(len(cohort)), cohort / LARGEST - 0.5])
        others = np.stack([4 * told[1] ** 2 - 0.5, 0 * told[1], np.sign(LARGEST - cohort) / 2])
        total = np.concatenate([told, others]).sum(1) + rng.normal(0, noise, 5)
        rows.append(Evaluate(LARGEST).report({"evaluated": total / np.sqrt(2)}, noise / np.sqrt(2)))
    return rows


@pytest.mark.parametrize(
    ("devices", "share", "noise", "rounds"),
    [(20, 0.05, 0.0, 1), (50, 0.05, 0.0, 1), (1000, 0.002, 0.0, 1), (300, 0.5, 40.0, 1), (300, 0.5, 20.0, 3)],
)
def test_intervals_miss_the_mean_of_all_devices_as_seldom_as_they_say(devices, share, noise, rounds):
    """A share of devices has the largest loss, however skewed that is. An interval misses with 2.5 per cent at most; of
    1,000 such more than 50 miss once in 100,000 times."""
    rng, missed, rest = np.random.default_rng(3), 0, 3.8
    for _ in range(1000):
        losses = np.where(rng.random(devices) < share, LARGEST, rest)
        found = evaluation_of(rows_of(losses, noise, rng, rounds), LARGEST, 1)
        missed += not found["loss_low"] <= rest + share * (LARGEST - rest) <= found["loss_high"]
    assert missed <= 50


def test_noise_that_is_added_is_the_noise_of_the_intervals():
    """1,000 normal numbers: their spread is 12 per cent off once in 10 million runs."""
    rounds, algorithm, goal = 200, Evaluate(LARGEST), 50
    plan = plan_noise("gaussian", rounds, BoundedParticipation(rounds, 1))(3.0)
    like = {"evaluated": jnp.zeros(5)}
    private = PrivateRounds(PrivateAggregation(plan, 1.0, goal), bytes(range(32)), like)
    state, told = private.init(), []
    for number in range(rounds):
        mean = private.next(state, empty_aggregate(like, exact=True), number)
        state = mean.state
        row = algorithm.report({"evaluated": goal * np.asarray(mean.delta["evaluated"])}, goal * mean.noise)
        # The number of devices moves all others by its half.
        half = row["evaluated_devices"] / 2
        told += [row["evaluated_devices"], row["evaluated_losses"] / LARGEST - half]
        told += [row[f"evaluated_{name}"] - half for name in ("squares", "accuracies", "below")]
    assert row["evaluated_noise"] == pytest.approx(3.0 * np.sqrt(2))
    assert np.std(told) == pytest.approx(row["evaluated_noise"], rel=0.12)
    assert abs(np.mean(told)) < 6 * row["evaluated_noise"] / np.sqrt(len(told))


@pytest.mark.parametrize(
    ("mean", "devices", "noise", "verdict"),
    [
        (3.5, 2000, 5.0, BETTER),
        (4.5, 2000, 5.0, WORSE),
        # Below the middle of the reference, and above its low end.
        (3.87, 2000, 0.0, NOT_DECIDED),
        (4.13, 2000, 0.0, NOT_DECIDED),
        (3.5, 20, 30.0, NOT_DECIDED),
        (3.5, 1, 0.0, NOT_DECIDED),
        (3.5, 2000, float("inf"), NOT_DECIDED),
    ],
)
def test_a_release_is_told_to_go_only_where_the_whole_interval_is_better(mean, devices, noise, verdict):
    rng = np.random.default_rng(1)
    losses = mean + 0.4 * np.linspace(-1, 1, devices) if devices > 1 else np.array([mean])
    rows = rows_of(losses, 0.0 if np.isinf(noise) else noise, rng)
    rows[0]["evaluated_noise"] = None if np.isinf(noise) else noise
    found = evaluation_of(rows, LARGEST, 1, Interval(3.9, 4.1))
    assert found["verdict"] == verdict
    assert (found["loss"] is None) == (noise > devices)


def test_a_row_that_lacks_a_sum_is_named():
    row = rows_of(np.full(9, 3.0), 0.0, np.random.default_rng(1))[0] | {"round": 7, "evaluated_losses": None}
    with pytest.raises(CheckpointError, match="round 7 has no number evaluated_losses"):
        evaluation_of([row], LARGEST, 1)
    assert evaluation_of([], LARGEST, 1)["loss_high"] == LARGEST, "nothing is known before the first round"
