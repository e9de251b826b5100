"""A private run whose clients are random numbers, other ones at every start: a program to be killed.

It uses the round loop, the noise, the ledger and the checkpoints of a simulation; only the training is left out. Before
a checkpoint is written, it notes in a file of its own what sums the checkpoint is made of.
"""

import json
import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from fedlm.fl_core.privacy.participation import BoundedParticipation
from fedlm.fl_core.privacy.private_rounds import PrivateAggregation
from fedlm.fl_core.rounds.aggregation import empty_aggregate
from fedlm.fl_core.rounds.round_loop import CohortResult, FederatedOptimization
from fedlm.fl_core.rounds.server_optimizers import ServerOptimizerConfig, init_server
from fedlm.fl_core.runs.driver import Run
from fedlm.fl_core.runs.federated_training import FederatedTraining
from fedlm.fl_core.runs.identity import Fact, RunIdentity
from fedlm.fl_core.runs.private_releases import PrivacyTerms
from fedlm.fl_core.runs.run_folder import RunFolder
from tests.fl_core.privacy.mechanisms import noise_matrices
from tests.support.exact_totals import exact_total

ROUNDS, EVERY, WIDTH, GOAL, CLIP, NOISE = 40, 3, 5, 10, 1.0, 2.0
SERVER = ServerOptimizerConfig("fedavg")


def plan_of(mechanism, rounds=ROUNDS):
    return noise_matrices.plan_of(mechanism, rounds, NOISE, BoundedParticipation(4, 5))


class RandomSums:
    """A `CohortRunner` of made-up sums."""

    def __init__(self):
        self.rng, self.sums = np.random.default_rng(int.from_bytes(os.urandom(8), "little")), {}

    def announce(self, plan):
        pass

    def run(self, params, plan, clip_norm=None, memory=()):
        total = self.rng.integers(-8, 9, WIDTH).astype(np.float32)
        self.sums[plan.round_number] = total.tolist()
        aggregate = empty_aggregate(params)._replace(delta=exact_total({"x": total}, CLIP), clients=jnp.asarray(10.0))
        return CohortResult(aggregate, 0, 0, 0)


class Everyone:
    def sample(self, round_number):
        return np.arange(10)


class NotedRunFolder(RunFolder):
    """Notes what a checkpoint is made of just before it is written."""

    note = None

    def save(self, rounds, state, about):
        self.note(rounds)
        super().save(rounds, state, about)


def go_on(directory, mechanism, rounds=ROUNDS):
    """Run until the end, or until killed."""
    aggregation, runner = PrivateAggregation(plan_of(mechanism, rounds), CLIP, GOAL), RandomSums()
    fresh = init_server(SERVER, {"x": jnp.zeros(WIDTH)})
    directory = Path(directory)
    with NotedRunFolder(directory / "run") as folder:
        identity = RunIdentity("toy", {}, {"vocabulary": Fact("none", "vocabulary")})
        terms = PrivacyTerms(aggregation.plan, 1e-6)
        run = Run(folder, identity, steps=rounds, save_every=EVERY, find_divergence=lambda rows: None, privacy=terms)
        training = FederatedTraining(run, FederatedOptimization(SERVER, 1.0, 1.0, 0), fresh, aggregation)
        generation = len(run.ledger.generations) - 1

        def note(done):
            with (directory / "notes.jsonl").open("a") as file:
                file.write(json.dumps({"generation": generation, "done": done, "sums": runner.sums}) + "\n")

        folder.note = note
        run.take(training.rounds(runner, Everyone()))
        (directory / "finished").touch()
