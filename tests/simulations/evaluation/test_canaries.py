"""Auditing: a run that remembers is caught, one with noise is not, and guesses by chance prove nothing."""

import jax
import numpy as np
import pytest

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.rounds.aggregation import AggregationRules
from fedlm.fl_core.rounds.local_sgd import LocalTraining
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.fl_core.runs.capabilities.interface import Ended
from fedlm.fl_core.updates.registry import make_compressor
from fedlm.models.registry import create_model
from fedlm.models.special_tokens import BOS_ID, EOS_ID, SPECIAL_TOKENS
from fedlm.simulations.data.federated_data import StoredData
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.engine.cohort_engine import ClientWork, CohortEngine
from fedlm.simulations.engine.cohort_samplers import make_cohorts
from fedlm.simulations.engine.cohort_settings import CohortSettings
from fedlm.simulations.evaluation import canaries
from fedlm.simulations.evaluation.canaries import WithCanaries, audit, draw_canaries
from fedlm.simulations.experiments.configuration import Experiment
from fedlm.simulations.experiments.experiment import run_experiment
from tests.deployment.small_deployment import MODEL as BIGRAM


def test_canaries_are_sequences_of_ordinary_tokens():
    drawn = draw_canaries(50, 4, 6, 120, seed=1)
    assert drawn.sequences.shape == (50, 7)
    assert (drawn.sequences[:, 0] == BOS_ID).all()
    assert (drawn.sequences[:, -1] == EOS_ID).all()
    words = drawn.sequences[:, 1:-1]
    assert words.min() >= len(SPECIAL_TOKENS)
    assert words.max() < 120
    assert len(np.unique(words, axis=0)) == 50
    assert 10 < drawn.inside.sum() < 40
    again = draw_canaries(50, 4, 6, 120, seed=1)
    assert (again.sequences == drawn.sequences).all()
    assert (again.inside == drawn.inside).all()
    assert (draw_canaries(50, 4, 6, 120, seed=2).inside != drawn.inside).any()


def test_coins_that_all_fell_alike_are_refused():
    refused = []
    for seed in range(40):
        try:
            assert draw_canaries(2, 1, 5, 120, seed=seed).inside.sum() == 1
        except ConfigurationError as error:
            refused.append(str(error))
    assert 8 < len(refused) < 32
    assert "all 2 canaries drew the same coin" in refused[0]


def test_canaries_are_the_last_clients_and_those_outside_have_nothing(small_store):
    data = StoredData(TokenStore.open(small_store).split("train"), 6)
    drawn = draw_canaries(8, 3, 6, 120, seed=0)
    both, clients = WithCanaries(data, drawn), len(data.num_examples)
    assert len(both.num_examples) == len(set(both.client_ids)) == clients + 8
    assert (both.num_examples[clients:] == np.where(drawn.inside, 3, 0)).all()
    assert (both.sequences(0) == data.sequences(0)).all()
    for place, secret in enumerate(drawn.sequences):
        assert (both.sequences(clients + place) == np.tile(secret, (3 if drawn.inside[place] else 0, 1))).all()
    assert both.sequences(clients + int(np.argmax(drawn.inside)), np.array([1])).shape == (1, 7)


@pytest.mark.parametrize("sampler", ["min_separation", "shuffled_epochs", "poisson"])
def test_coins_move_nobody_else(small_store, sampler):
    data = StoredData(TokenStore.open(small_store).split("train"), 6)
    drawn = draw_canaries(8, 3, 6, 120, seed=0)
    settings = CohortSettings(cohort_size=7, cohort_sampler=sampler)
    one, other = (
        make_cohorts(settings, WithCanaries(data, drawn._replace(inside=inside)), 6, seed=4)
        for inside in (drawn.inside, np.zeros(8, bool))
    )
    assert one.participation == other.participation
    cohorts = [one.sampler.sample(number) for number in range(6)]
    assert np.concatenate(cohorts).max() >= len(data.num_examples)
    for number, cohort in enumerate(cohorts):
        np.testing.assert_array_equal(cohort, other.sampler.sample(number))


@pytest.mark.long
def test_a_canary_outside_adds_zero_to_every_sum_and_to_every_count(small_store):
    data = StoredData(TokenStore.open(small_store).split("train"), 6)
    drawn = draw_canaries(8, 3, 6, 120, seed=0)
    both, clients = WithCanaries(data, drawn), len(data.num_examples)
    outside = clients + np.flatnonzero(~drawn.inside)
    model = create_model(BIGRAM, 120)
    rules = AggregationRules(weighting="uniform")
    work = ClientWork(model, LocalTraining(), make_compressor("float32"), rules)
    engine = CohortEngine(work, both, 6, devices=jax.devices()[:1])
    params = model.init(jax.random.key(0))
    without, present = (
        engine.run(params, RoundPlan(0, np.asarray(cohort), seed=0, learning_rate=0.5), 0.5)
        for cohort in ([0, 1, 2], [0, outside[0], 1, 2, *outside[1:]])
    )
    assert present.steps == without.steps
    assert float(present.aggregate.clients) == 3
    for found, expected in zip(*map(jax.tree_util.tree_leaves, (present, without)), strict=True):
        if np.ndim(found) or isinstance(found, jax.Array):
            np.testing.assert_array_equal(found, expected)


def audit_of(monkeypatch, gain, inside):
    """The audit of a model whose losses of the canaries fell by `gain`."""
    losses = iter([np.zeros(len(gain)), -np.asarray(gain)])
    monkeypatch.setattr(canaries, "_losses", lambda *_: next(losses))
    drawn = draw_canaries(len(gain), 1, 5, 120, seed=0)._replace(inside=inside)
    return audit(Ended(None, lambda: None, lambda: None, 1e-5), drawn)


def test_canaries_that_give_themselves_away_prove_an_epsilon_and_guesses_by_chance_nothing(monkeypatch):
    rng, bounds, areas = np.random.default_rng(1), [], []
    inside = rng.random(200) < 0.5
    found = audit_of(monkeypatch, inside + 0.01 * rng.normal(size=200), inside)
    # 200 right guesses of 200 have a chance of 0.05 at most if each is right with 0.05^(1/200) = e^4.2 / (1 + e^4.2).
    assert 3 < found["epsilon_lower_bound"] < 4.3
    assert (found["auc"], found["canaries_inside"]) == (1.0, inside.sum())
    for _ in range(20):
        inside = rng.random(100) < 0.5
        found = audit_of(monkeypatch, rng.normal(size=100), inside)
        bounds.append(found["epsilon_lower_bound"])
        areas.append(found["auc"])
    assert np.mean(areas) == pytest.approx(0.5, abs=0.06)
    # The truth is 0, and a bound above 0.5 would have to be wrong by more than its confidence allows.
    assert np.sum(np.array(bounds) > 0.5) <= 3
    # Losses that are no numbers do not stop it.
    assert np.isfinite(audit_of(monkeypatch, np.where(inside, np.nan, -np.inf), inside)["epsilon_lower_bound"])


def summary_of(small_store, out, **changes):
    settings = {
        "model": BIGRAM,
        "data": small_store,
        "rounds": 14,
        "cohort_size": 100,
        "cohort_sampler": "shuffled_epochs",
        "client_learning_rate": 4.0,
        "client_max_batches": 4,
        "client_gradient_clip": 1.0,
        "server_optimizer": "fedavg",
        "server_learning_rate": 1.0,
        "length": 8,
        "heldout_examples": 20,
        "test_examples": 20,
        "audit_canaries": 80,
        "audit_repeats": 40,
        "delta": 1e-5,
        "lanes_per_device": 1,
        "weighting": "uniform",
    }
    return run_experiment(compose(Experiment, **settings | changes), out)


@pytest.mark.long
def test_a_run_without_noise_is_caught_and_one_with_noise_keeps_its_promise(small_store, tmp_path):
    caught = summary_of(small_store, tmp_path / "bare")
    assert caught["audit"]["auc"] > 0.95, caught["audit"]
    assert caught["audit"]["epsilon_lower_bound"] > 1
    assert "NOT PRIVATE" in caught["privacy"]
    noise = {"privacy": "gaussian", "update_clip_norm": 1.0, "noise_multiplier": 8.0}
    kept = summary_of(small_store, tmp_path / "noised", **noise)
    assert kept["audit"]["epsilon_lower_bound"] < kept["privacy_guarantee"]["epsilon"]
    assert kept["audit"]["epsilon_lower_bound"] < caught["audit"]["epsilon_lower_bound"] / 2
    assert kept["audit"]["delta"] == kept["privacy_guarantee"]["delta"]
