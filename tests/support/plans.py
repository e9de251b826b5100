"""Plans of small models, and the round that a client without plans makes of the same batches."""

import functools

import jax
import numpy as np
import pytest

from fedlm.clients.device.local_training import _compress
from fedlm.fedlm_client.plans.batches import RoundSeed, batch_of, batch_rows, random_words, shuffled, stream
from fedlm.fedlm_client.plans.manifest import read_manifest
from fedlm.fl_core.client_algorithms.interface import Broadcast, sent_by_client, sent_by_server
from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.deployment.plans.plan import PlanSource, make_plan
from fedlm.fl_core.rounds.local_sgd import train_client
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.fl_core.rounds.settings import TrainingSettings
from fedlm.fl_core.updates.update_bytes import pack_update, unpack_parameters
from fedlm.models.layers.dropout import with_dropout
from fedlm.models.precision import precision_scope, resolve_precision, with_precision
from fedlm.models.registry import create_model

STREAM, RATE = RoundSeed(4_000_000_007, 3, 17), 0.3
SEED, ROUND, CLIENT = STREAM
SETTINGS = {"length": 6, "client_batch_size": 4, "client_max_batches": 5}
BIGRAM = "tests.deployment.small_deployment:BIGRAM"
VOCABULARY = 40


def settings_of(**changes):
    return compose(TrainingSettings, **SETTINGS | changes)


@functools.cache
def plan_of(model=BIGRAM, vocabulary=VOCABULARY, **changes):
    """A plan, and its manifest as a client reads it."""
    pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed; `make` installs it")
    plan = make_plan(PlanSource(model, b"{}", vocabulary, settings_of(**changes)))
    return plan, read_manifest(plan.manifest)


def examples(count, length, vocabulary=VOCABULARY):
    rng = np.random.default_rng(1)
    rows = rng.integers(4, vocabulary, (count, length + 1))
    rows[:, 0] = 1
    return np.where(np.arange(length + 1) < rng.integers(3, length + 2, (count, 1)), rows, 0).astype(np.int32)


def sent_values(manifest):
    """What a server sends, float32 [values]."""
    return (0.1 * np.random.default_rng(2).normal(size=manifest.download_values)).astype(np.float32)


def train(trainer, manifest, values, sequences):
    """A round of a plan's client; gives its sums and its upload's bytes between header and checksum."""
    batches = manifest.batches
    trainer.begin(values)
    for number, rows in enumerate(batch_rows(len(sequences), batches, 1000, STREAM)):
        tokens, weight = batch_of(sequences, rows, batches.pad)
        trainer.step(tokens, weight, random_words(batches, STREAM, number), RATE)
    sums, finite, body = trainer.finish(SEED, ROUND, CLIENT)
    assert finite
    return sums, body


class PlanShuffle:
    """A stream that shuffles as plans say, for code that wants NumPy's."""

    def __init__(self):
        self.epoch = 0

    def permutation(self, count):
        order = shuffled(count, stream(SEED, "shuffle", ROUND, CLIENT, self.epoch))
        self.epoch += 1
        return order


class PlanDropout:
    """The words of `random_words`, for code that wants NumPy's."""

    def __init__(self, batches):
        self.batches = batches

    def integers(self, most, size, dtype):
        return np.stack([random_words(self.batches, STREAM, step) for step in range(size[0])])


class Recorded:
    """Keeps a round's batches, where a trainer would train with them."""

    def __init__(self):
        self.taken, self.stream = [], None

    def begin(self, values):
        """There is nothing to do."""

    def step(self, tokens, weight, random, rate):
        self.taken.append((tokens, weight, random))

    def finish(self, *stream):
        self.stream = stream
        return [], True, b""

    def steps(self):
        tokens, weight, random = (np.stack(one) for one in zip(*self.taken, strict=True))
        return {"tokens": tokens, "weight": weight, "random": random}


def trained_natively(values, sequences, batches, model=BIGRAM, vocabulary=VOCABULARY, **changes):
    """The same round by `local_sgd`; gives sums, the client's parameters and its whole upload."""
    settings = settings_of(**changes)
    precision = resolve_precision(settings.precision, "cpu")
    made = with_precision(with_dropout(create_model(model, vocabulary), settings.dropout), precision)
    training = settings.local_training()
    like = jax.eval_shape(made.init, jax.random.key(0))
    server = unpack_parameters(values.tobytes(), "float32", sent_by_server(training.algorithm, like))
    with precision_scope(precision):
        local, sums = train_client(
            made,
            Broadcast(*server),
            sequences,
            training,
            rng=PlanShuffle(),
            learning_rate=RATE,
            dropout_rng=PlanDropout(batches),
        )
        update = training.algorithm.finish(server, local)
        key = jax.random.fold_in(RoundPlan(ROUND, np.array([CLIENT]), SEED, RATE).upload_key(), CLIENT)
        compressed = _compress(settings.compressor(), key, update)
    upload = pack_update(settings.compressor(), compressed, sent_by_client(training.algorithm, like))
    return [float(one) for one in sums], update, upload
