"""Runs for tests about a run's life: a model of a dozen parameters, whose cohorts are trained in NumPy.

All else is what users have: settings, rounds, noise, ledger, checkpoints, scores, summary. With the fixture
`plain_cohorts` no client's training is compiled.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.rounds.aggregation import add_aggregates, contribution, empty_aggregate
from fedlm.fl_core.rounds.local_sgd import TrainingSums, batch_rows
from fedlm.fl_core.rounds.round_loop import CohortResult
from fedlm.fl_core.updates.update_bytes import download_bytes, upload_bytes
from fedlm.models.base import language_model
from fedlm.models.registry import ModelEntry
from fedlm.models.special_tokens import PAD_ID
from fedlm.simulations.experiments.configuration import Experiment
from fedlm.simulations.experiments.experiment import run_experiment

MODEL = "tests.support.plain_runs:UNIGRAM"
OTHER_MODEL = "tests.support.plain_runs:OTHER_UNIGRAM"
PARAMETERS = 12
PUBLIC = {
    "model": MODEL,
    "rounds": 1,
    "cohort_size": 6,
    "client_max_batches": 2,
    "length": 8,
    "heldout_examples": 20,
    "test_examples": 20,
    "update_clip_norm": 0.1,
    "cohort_sampler": "min_separation",
}
"""Settings of an experiment, all but its data."""
PRIVATE = PUBLIC | {"privacy": "gaussian", "noise_multiplier": 4.0, "delta": 1e-5}
"""The same with noise."""
NO_PRIVACY = {"privacy": "none", "noise_multiplier": None, "delta": None}


@dataclasses.dataclass(frozen=True)
class UnigramConfig:
    vocabulary_size: int = 50
    scale: float = 1.0


def features_of(vocabulary_size):
    """float32 [vocabulary_size, PARAMETERS]: what the model knows of each token."""
    return np.random.default_rng(0).normal(size=(vocabulary_size, PARAMETERS)).astype(np.float32)


def unigram(name, config):
    """Predicts every token alike, whatever came before it."""
    features = config.scale * features_of(config.vocabulary_size)

    def init(key):
        return {"weights": 0.1 * jax.random.normal(key, (PARAMETERS,))}

    def apply(params, tokens):
        return jnp.broadcast_to(features @ params["weights"], (*tokens.shape, config.vocabulary_size))

    return language_model(name, config.vocabulary_size, init, apply)


UNIGRAM = ModelEntry(unigram, UnigramConfig())
OTHER_UNIGRAM = ModelEntry(unigram, UnigramConfig(scale=2.0))


class PlainCohorts:
    """A `CohortRunner` of plain SGD for the unigram model, one client after the other."""

    def __init__(self, training, *others):
        self.work, self.clients = training.work, training.clients
        self.features = features_of(self.work.model.vocabulary_size)

    def announce(self, plan):
        pass

    def run(self, params, plan, clip_norm=None, memory=()):
        aggregate, counted, steps = empty_aggregate(params, self.work.rules.exact), self.clients.num_examples, 0
        for client in map(int, plan.clients):
            batches = batch_rows(counted[client], self.work.training, plan.shuffling(client))
            local, sums = np.asarray(params["weights"]), np.zeros(3, np.float32)
            for rows in batches:
                gradient, of_step = self.gradient(local, self.clients.sequences(client, rows[rows >= 0]))
                local, sums = local - np.float32(plan.learning_rate) * gradient, sums + of_step
            delta = {"weights": params["weights"] - local}
            examples = self.work.training.count_examples(counted[client]).astype(np.float32)
            theirs = _contribution(delta, examples, TrainingSums(*sums), self.work.rules, clip_norm=clip_norm)
            aggregate, steps = _added(aggregate, theirs), steps + len(batches)
        answers = int(aggregate.clients - aggregate.dropped)
        up = answers * upload_bytes(self.work.compressor, params)
        return CohortResult(aggregate, steps, len(plan.clients) * download_bytes(params), up)

    def gradient(self, weights, sequences):
        """Of the mean loss of tokens, float32 [PARAMETERS], and the sums that training keeps, float32 [3]."""
        targets = sequences[:, 1:]
        targets = targets[targets != PAD_ID]
        logits = self.features @ weights
        log_likely = logits - np.log(np.exp(logits).sum())
        gradient = np.exp(log_likely) @ self.features - self.features[targets].mean(axis=0)
        return gradient, np.float32([-log_likely[targets].sum(), len(targets), np.linalg.norm(gradient)])


_contribution = jax.jit(contribution, static_argnums=3)
_added = jax.jit(add_aggregates)


def run(settings, out, **changes):
    """Run an experiment, or the rest of it; returns its summary."""
    return run_experiment(compose(Experiment, **settings | changes), out)


def run_until(round_number, settings, out, **changes):
    """The same, but a process that ends where a round is shown."""

    def observe(row, rounds):
        if row["round"] == round_number:
            raise StopError

    with pytest.raises(StopError):
        run_experiment(compose(Experiment, **settings | changes), out, observe)


class StopError(Exception):
    """The end of a process."""
