"""Private runs that end before, in or after the checkpoint of a release: what may have been seen keeps its promise.

Rounds, noise, ledger and checkpoints are those of a simulation. Clients are random numbers, other ones at every start.
"""

import contextlib

import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS, make_noise
from fedlm.fl_core.privacy.noise.noise_source import noise_from
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.private_rounds import PrivateAggregation
from fedlm.fl_core.privacy.promise.guarantee import account
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.statement import state
from fedlm.fl_core.rounds.aggregation import empty_aggregate
from fedlm.fl_core.rounds.round_loop import CohortResult, FederatedOptimization
from fedlm.fl_core.rounds.server_optimizers import ServerOptimizerConfig, init_server
from fedlm.fl_core.runs.driver import Run
from fedlm.fl_core.runs.federated_training import FederatedTraining
from fedlm.fl_core.runs.files.metrics_log import read_rows
from fedlm.fl_core.runs.identity import Fact, RunIdentity
from fedlm.fl_core.runs.private_releases import PrivacyTerms
from fedlm.fl_core.runs.run_folder import RunFolder
from tests.fl_core.privacy.mechanisms.noise_matrices import plan_of
from tests.support.exact_totals import exact_total

# Enough for four participations of one client.
ROUNDS, EVERY, WIDTH, GOAL, CLIP, NOISE, DELTA = 17, 3, 5, 10, 1.0, 2.0, 1e-6
PLACES = ("before", "in", "after")
SERVER = ServerOptimizerConfig("fedavg")


class EndError(Exception):
    pass


class EndingFolder(RunFolder):
    """Ends the run at a place around the checkpoint of its third release, if any."""

    place = None

    def save(self, rounds, state, about):
        here = self.place if rounds == 3 * EVERY else None
        if here == "in":
            half = self.directory / "checkpoints" / f"{rounds}.orbax-checkpoint-tmp"
            half.mkdir()
            (half / "half").write_bytes(b"half a model")
        if here in ("before", "in"):
            raise EndError
        super().save(rounds, state, about)
        if here == "after":
            raise EndError


class RandomSums:
    """A `CohortRunner` of made-up sums, which it remembers by round."""

    def __init__(self, start):
        self.rng, self.sums = np.random.default_rng(start), {}

    def announce(self, plan):
        pass

    def run(self, params, plan, clip_norm=None, memory=()):
        total = self.sums[plan.round_number] = self.rng.integers(-8, 9, WIDTH).astype(np.float32)
        aggregate = empty_aggregate(params)._replace(delta=exact_total({"x": total}, CLIP), clients=jnp.asarray(10.0))
        return CohortResult(aggregate, 0, 0, 0)


class Everyone:
    def sample(self, round_number):
        return np.arange(10)


def go_on(out, plan, place=None):
    """Run to the end, or to a place; returns the sums by round, and the parameters."""
    runner, fresh = RandomSums(0 if place else 1), init_server(SERVER, {"x": jnp.zeros(WIDTH)})
    identity = RunIdentity("made up", {}, {"vocabulary": Fact("none", "vocabulary")})
    with contextlib.suppress(EndError), EndingFolder(out) as folder:
        folder.place, terms = place, PrivacyTerms(plan, DELTA)
        run = Run(folder, identity, steps=ROUNDS, save_every=EVERY, find_divergence=lambda rows: None, privacy=terms)
        optimization = FederatedOptimization(SERVER, 1.0, 1.0, 0)
        training = FederatedTraining(run, optimization, fresh, PrivateAggregation(plan, CLIP, GOAL))
        run.take(training.rounds(runner, Everyone()))
    return runner.sums, np.asarray(training.server.params["x"])


def noise_of(out, plan, generation, rounds):
    """The noise on the sums of a generation, by round."""
    secret = (out / "privacy" / f"noise-secret-{generation}").read_bytes()
    made, like, noise = make_noise(plan, *rounds), {"delta": {"x": np.zeros(WIDTH, np.float32)}}, {}
    draw, now = noise_from(secret, like), made.init(like)
    for number in range(*rounds):
        drawn, now = made.next(now, draw)
        noise[number] = np.asarray(drawn["delta"]["x"]) * NOISE * CLIP
    return noise


@pytest.mark.parametrize(
    ("mechanism", "place"),
    [
        pytest.param(name, place, marks=[] if (name, place) in (("tree", "in"), ("banded", "in")) else pytest.mark.long)
        for name in MECHANISMS
        if not MECHANISMS[name].distributed
        for place in PLACES
    ],
)
def test_an_end_around_a_release_keeps_the_promise(tmp_path, mechanism, place):
    plan, lost = plan_of(mechanism, ROUNDS, NOISE, BoundedParticipation(4, 5)), place != "after"
    before, _ = go_on(tmp_path, plan, place)
    after, params = go_on(tmp_path, plan)
    ledger = PrivacyLedger(tmp_path / "privacy" / "ledger.jsonl")
    generations, end = ledger.generations, 1 + max(after)
    # A run that lost rounds may end early, rather than spend more than planned.
    assert generations == ([(0, 9), (9, end)] if lost else [(0, ROUNDS)])
    assert list(after) == list(range(9, end))
    assert len({path.read_bytes() for path in (tmp_path / "privacy").glob("noise-secret-*")}) == len(generations)
    # What was released is the sum of all that the ledger says, once each, with the noise of its generation.
    released = [*range(6 if lost else 9), *after]
    sums, noise = before | after, [noise_of(tmp_path, plan, *each) for each in enumerate(generations)]
    steps = [sums[number] + noise[-1 if number >= 9 else 0][number] for number in released]
    np.testing.assert_allclose(params, -np.sum(steps, axis=0) / GOAL, atol=1e-4)
    assert [row["round"] for row in read_rows(tmp_path / "metrics.jsonl")] == released
    # Rounds whose checkpoint was lost may have been seen.
    spent = state(ledger).own.epsilon
    assert spent == pytest.approx(account(plan, DELTA, generations).epsilon)
    assert spent <= account(plan, DELTA).epsilon * (1 + 1e-6)
