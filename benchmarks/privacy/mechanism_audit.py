"""What the noise of each mechanism lets through, against what is accounted: an audit of the noise as it is drawn.

The most that one person can change the releases of a run is along a pattern of participation that the sampler allows,
with updates of one direction and either sign. For each mechanism all patterns and signs are tried on the covariance of
its noise, which is read off by giving unit vectors for draws. Then real noise is drawn, by the run's own functions and
a fresh secret for each world: with the person's updates added at the worst pattern, and without. Each coordinate is a
trial of its own. The best linear test of two normal distributions weighs the releases by the inverse covariance times
the change; mu is the difference of its means in its standard deviations, and the accounted mu is the sensitivity over
the noise multiplier. No measured mu may be above the accounted one by more than the tolerance, and where the accounted
sensitivity is exact none may be below it.

Poisson sampling draws who takes part by the run's own sampler, each client being a trial; there the privacy profile is
measured, by the likelihood ratio. So it is for the banded noise of central training, whose units take turns, by that of
the units whose turn comes first, which may be in most batches. Adaptive clipping is read off from the clip norms that
are published.

    python -m benchmarks.privacy.mechanism_audit

`tolerance` is the error that a correct mechanism exceeds with a probability of `false_alarm` at most, in any of the
comparisons.
"""

import argparse
import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from benchmarks.machine import describe_machine
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.privacy.accounting.composition import delta_above
from fedlm.fl_core.privacy.mechanisms.banded import BandedSettings
from fedlm.fl_core.privacy.mechanisms.interface import Generations
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS, make_noise
from fedlm.fl_core.privacy.mechanisms.tree import Trees
from fedlm.fl_core.privacy.noise.noise_source import fresh_secret, noise_from
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.participation.sampling import PoissonParticipation
from fedlm.fl_core.privacy.private_cohorts import PoissonSampler
from fedlm.fl_core.privacy.private_rounds import AdaptiveClipping, PrivateAggregation, PrivateRounds
from fedlm.fl_core.privacy.promise.guarantee import events_of, sensitivity_squared
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan, plan_noise
from fedlm.fl_core.rounds.aggregation import empty_aggregate
from fedlm.simulations.pretraining.batches.cyclic_sampling import CyclicPoissonBatches

RESULTS = Path(__file__).parent / "results" / "mechanism_audit.json"
ROUNDS = 12
CENTRAL = [name for name, mechanism in MECHANISMS.items() if not mechanism.distributed]
BOUNDS = (BoundedParticipation(1, 1), BoundedParticipation(3, 4))
_MU = 2.0
_EPSILON = 0.5


@dataclass(frozen=True)
class Case:
    """What is audited.

    Attributes:
      name: in the results.
      plan: that is accounted.
      cuts: rounds at which noise begins anew with another secret, as after a crash.
    """

    name: str
    plan: PrivacyPlan
    cuts: tuple[int, ...] = ()

    @property
    def generations(self) -> Generations:
        return list(itertools.pairwise([0, *self.cuts, self.plan.rounds]))


@dataclass(frozen=True)
class Faults:
    """What is wrong on purpose, to see that the audit finds it.

    Attributes:
      noise_scale: that drawn noise is multiplied by.
      participation: that the person keeps to, in place of what is accounted.
    """

    noise_scale: float = 1.0
    participation: BoundedParticipation | None = None


def optimized(name: str, bound: BoundedParticipation) -> PrivacyPlan:
    """Plan a mechanism as a run does, but for the amount of noise."""
    return plan_noise(name, ROUNDS, bound)(1.0)


def cases(plan_of: Callable[[str, BoundedParticipation], PrivacyPlan] = optimized) -> Iterator[Case]:
    """List what is audited by linear tests: every mechanism of the server's noise, with restarts and completion where
    it has them."""
    for name, bound in itertools.product(CENTRAL, BOUNDS):
        plan, words = (
            calibrated(plan_of(name, bound)),
            f"{name}, k {bound.max_participations}, b {bound.min_separation}",
        )
        yield Case(words, plan)
        yield Case(f"{words}, a new secret at round 5", plan, (5,))
        if MECHANISMS[name].own_plan is Trees:
            for complete in (False, True):
                changed = dataclasses.replace(plan, own=Trees(5, complete))
                yield Case(f"{words}, restarts{', completed' if complete else ''}", calibrated(changed))


def calibrated(plan: PrivacyPlan) -> PrivacyPlan:
    """Give a plan the noise of one and the same mu."""
    noise = math.sqrt(sensitivity_squared(plan, [(0, plan.rounds)])) / _MU
    return dataclasses.replace(plan, noise_multiplier=noise)


def audit(case: Case, trials: int, faults: Faults = Faults()) -> dict[str, float]:
    """Measure mu of a case, with its standard error, beside the accounted one and the largest of a linear test."""
    plan, bound = case.plan, faults.participation or case.plan.participation.bounded(case.plan.rounds)
    covariance = np.zeros((plan.rounds, plan.rounds))
    for first, end in case.generations:
        mixing = _mixing(plan, first, end)
        covariance[first:end, first:end] = mixing @ mixing.T
    weights, shift, squared = _worst_change(np.linalg.inv(covariance), bound)
    scale = plan.noise_multiplier * faults.noise_scale
    without, changed = (_statistic(case, weights, scale, shift, trials, world) for world in (0.0, 1.0))
    deviation = math.sqrt((np.var(without) + np.var(changed)) / 2)
    measured = (np.mean(changed) - np.mean(without)) / deviation
    return {
        "measured_mu": float(measured),
        "standard_error": math.sqrt(2 / trials + measured**2 / (4 * trials)),
        "accounted_mu": math.sqrt(sensitivity_squared(plan, case.generations)) / plan.noise_multiplier,
        "linear_mu": math.sqrt(squared) / plan.noise_multiplier,
    }


def _mixing(plan: PrivacyPlan, first: int, end: int) -> np.ndarray:
    """What the noise of rounds is made of: float64 [rounds, draws]."""
    names: dict[Any, int] = {}
    width = 16 * plan.rounds

    def draw(terms: Sequence[tuple[float, Any]]) -> dict[str, np.ndarray]:
        total = np.zeros(width)
        for coefficient, name in terms:
            total[names.setdefault(name, len(names))] += coefficient
        return {"x": total}

    return np.stack([noise["x"] for noise in _rounds(plan, first, end, draw, width)])


def _rounds(plan: PrivacyPlan, first: int, end: int, draw: Any, width: int) -> Iterator[Any]:
    noise, like = make_noise(plan, first, end), {"x": jax.ShapeDtypeStruct((width,), np.float32)}
    state = noise.init(like)
    for _ in range(first, end):
        drawn, state = noise.next(state, draw)
        yield jax.tree_util.tree_map(np.asarray, drawn)


def _worst_change(precision: np.ndarray, bound: BoundedParticipation) -> tuple[np.ndarray, np.ndarray, float]:
    """Try all patterns and signs: the test's weights, the change, and its square in deviations."""
    rounds, best = len(precision), (-1.0, np.zeros(0))
    for count in range(1, bound.most(rounds) + 1):
        for pattern in itertools.combinations(range(rounds), count):
            if any(later - earlier < bound.min_separation for earlier, later in itertools.pairwise(pattern)):
                continue
            for signs in itertools.product((1.0, -1.0), repeat=count - 1):
                change = np.zeros(rounds)
                change[list(pattern)] = (1.0, *signs)
                squared = float(change @ precision @ change)
                if squared > best[0]:
                    best = squared, change
    squared, change = best
    return precision @ change, change, squared


def _statistic(
    case: Case, weights: np.ndarray, scale: float, shift: np.ndarray, trials: int, world: float
) -> np.ndarray:
    """The test's statistic of each coordinate of releases in units of the clip norm, float64 [trials]."""
    total = np.full(trials, world * float(weights @ shift))
    for first, end in case.generations:
        like = {"x": jax.ShapeDtypeStruct((trials,), np.float32)}
        draw = noise_from(fresh_secret(), like)
        for number, noise in enumerate(_rounds(case.plan, first, end, draw, trials), first):
            total += weights[number] * scale * np.asarray(noise["x"], np.float64)
    return total


def audit_poisson(trials: int, faults: Faults = Faults()) -> dict[str, float]:
    """Measure delta at an epsilon of sampled rounds, of many persons at once: each client is one, in a sum of its own.

    The test is the likelihood ratio's: `delta = E[max(0, 1 - exp(epsilon - loss))]`, the loss summed over rounds.
    """
    rounds, probability, multiplier = 6, 0.2, 1.0
    plan = PrivacyPlan("gaussian", rounds, multiplier, PoissonParticipation(probability))
    sampler = PoissonSampler(trials, round(trials * probability), int.from_bytes(fresh_secret(), "little"))
    draw = noise_from(fresh_secret(), {"x": jax.ShapeDtypeStruct((trials,), np.float32)})
    loss = np.zeros(trials)
    for number, noise in enumerate(_rounds(plan, 0, rounds, draw, trials)):
        released = multiplier * faults.noise_scale * np.asarray(noise["x"], np.float64)
        released[sampler.sample(number)] += 1.0
        loss += np.log1p(probability * np.expm1((released - 0.5) / multiplier**2))
    return _beside_profile(loss, plan)


def _beside_profile(loss: np.ndarray, plan: PrivacyPlan) -> dict[str, float]:
    """Put delta, of privacy losses that were drawn, beside what is accounted."""
    over = np.maximum(-np.expm1(_EPSILON - loss), 0.0)
    return {
        "measured_delta": float(np.mean(over)),
        "standard_error": float(np.std(over) / math.sqrt(len(loss))),
        "accounted_delta": delta_above(events_of(plan), _EPSILON),
    }


def audit_turns(trials: int, faults: Faults = Faults()) -> dict[str, float]:
    """Measure delta at an epsilon of banded noise whose units take turns: each unit is one trial, in a sum of its own.

    A unit's turns are so far apart that noise is correlated within them alone: what its turns tell is independent.
    """
    rounds, cycle, probability, multiplier = 6, 3, 0.3, 1.0
    plan = plan_noise(
        "banded", rounds, PoissonParticipation(probability, cycle=cycle), options=BandedSettings(bands=cycle)
    )(multiplier)
    units: Any = SimpleNamespace(count=trials, unit="of an audit")
    batches = CyclicPoissonBatches(units, round(trials * probability / cycle), fresh_secret(), probability, cycle)
    draw = noise_from(fresh_secret(), {"x": jax.ShapeDtypeStruct((trials,), np.float32)})
    noises = [np.asarray(noise["x"], np.float64) for noise in _rounds(plan, 0, rounds, draw, trials)]
    released = multiplier * faults.noise_scale * np.stack(noises)
    for number in range(rounds):
        released[number, batches.draw(number)] += 1.0
    mixing = _mixing(plan, 0, rounds)
    precision = np.linalg.inv(mixing @ mixing.T) / multiplier**2
    loss = np.zeros(trials)
    for number in range(0, rounds, cycle):
        told = precision[number] @ released - precision[number, number] / 2
        loss += np.log1p(probability * np.expm1(told))
    # Hardly a unit whose turn it is stays away for so long.
    first = np.unique(np.concatenate([batches.draw(cycle * turn) for turn in range(60)]))
    return _beside_profile(loss[first], plan)


def audit_adaptive(rounds: int, faults: Faults = Faults()) -> dict[str, float]:
    """Measure mu of a round with adaptive clipping, of its sum and its count together, each round being a trial.

    The count is what the clip norm that is published afterwards says of it. A client that adds nothing is compared with
    one whose update is as long as the clip norm and is not clipped.
    """
    multiplier, goal, width = 1 / _MU, 100, 16
    adaptive = AdaptiveClipping(quantile=0.5, rate=0.2, count_noise=multiplier / math.sqrt(2))
    plan = PrivacyPlan("gaussian", rounds, multiplier, BoundedParticipation(1, 1))
    like = {"x": jax.ShapeDtypeStruct((width,), np.float32)}
    private = PrivateRounds(PrivateAggregation(plan, 1.0, goal, adaptive), fresh_secret(), like)
    nobody = empty_aggregate({"x": np.zeros(width, np.float32)}, exact=True)
    somebody = nobody._replace(clients=np.float32(1))
    state, sums, counts = private.init(), [], []
    for number in range(rounds):
        clip_norm = float(state.clip_norm)
        # Somebody in every second round: the two worlds in turn.
        found = private.next(state, somebody if number % 2 else nobody, number)
        state = found.state
        sums.append(np.asarray(found.delta["x"], np.float64) * goal / clip_norm * faults.noise_scale)
        counts.append((0.5 - math.log(float(state.clip_norm) / clip_norm) / adaptive.rate - 0.5) * goal)
    worlds = np.arange(rounds) % 2 == 1
    count = np.asarray(counts)
    of_sum = 1 / float(np.std(np.concatenate(sums)))
    deviation = math.sqrt((np.var(count[worlds]) + np.var(count[~worlds])) / 2)
    of_count = float(count[worlds].mean() - count[~worlds].mean()) / deviation
    measured = math.hypot(of_sum, of_count)
    errors = of_sum**2 / math.sqrt(2 * rounds * width), of_count * math.sqrt(4 / rounds + of_count**2 / (2 * rounds))
    return {
        "measured_mu": measured,
        "standard_error": math.hypot(*errors) / measured,
        "accounted_mu": 1 / multiplier,
        # The count is rounded to halves, which hides a little more.
        "linear_mu": math.hypot(1 / adaptive.sum_noise(multiplier), 0.5 / math.sqrt(adaptive.count_noise**2 + 1 / 48)),
    }


def judged(result: dict[str, float], standard_errors: float) -> dict[str, Any]:
    """Say whether a measurement is above what is accounted, or apart from what theory says of the test, by more than
    so many standard errors."""
    kind = "mu" if "measured_mu" in result else "delta"
    measured, accounted = result[f"measured_{kind}"], result[f"accounted_{kind}"]
    allowed, expected = standard_errors * result["standard_error"], result.get("linear_mu", accounted)
    wrong = measured > accounted + allowed or abs(measured - expected) > allowed or expected > accounted * (1 + 1e-5)
    return {**result, "tolerance": allowed / accounted, "found_wrong": bool(wrong)}


def standard_errors_for(false_alarm: float, comparisons: int) -> float:
    """Choose how far measurements may be off, each in both directions, for a probability that one of them is."""
    return NormalDist().inv_cdf(1 - false_alarm / (2 * comparisons))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100_000, help="of each mechanism; of sampling ten times as many")
    parser.add_argument("--adaptive-rounds", type=int, default=24_000, help="with adaptive clipping, each a trial")
    parser.add_argument("--false-alarm", type=float, default=1e-4, help="of all comparisons together")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers go")
    arguments = parser.parse_args()
    chosen = list(cases())
    quantile = standard_errors_for(arguments.false_alarm, len(chosen) + 3)
    results: dict[str, dict[str, Any]] = {}
    for case in chosen:
        results[case.name] = judged(audit(case, arguments.trials), quantile)
        print(f"{case.name}: {results[case.name]}", flush=True)
    results["gaussian, Poisson"] = judged(audit_poisson(10 * arguments.trials), quantile)
    results["banded, units that take turns"] = judged(audit_turns(10 * arguments.trials), quantile)
    results["gaussian, adaptive clipping"] = judged(audit_adaptive(arguments.adaptive_rounds), quantile)
    record = {
        "machine": describe_machine(),
        "versions": {name: version(name) for name in ("jax-privacy", "dp-accounting")},
        "setting": {
            "trials": arguments.trials,
            "adaptive_rounds": arguments.adaptive_rounds,
            "rounds": ROUNDS,
            "false_alarm": arguments.false_alarm,
            "standard_errors": quantile,
        },
        "found_wrong": [name for name, result in results.items() if result["found_wrong"]],
        "results": results,
    }
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.results, json.dumps(record, indent=1) + "\n")
    print(f"found wrong: {record['found_wrong'] or 'nothing'}; {arguments.results}")


if __name__ == "__main__":
    main()
