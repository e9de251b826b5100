"""Central runs that drop activations, or go on with what they have written down."""

import functools
import math

import pytest

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.privacy.accounting.monte_carlo import balls_in_bins, min_separation
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.statement import state
from fedlm.fl_core.rounds.scores import Scores
from fedlm.fl_core.runs.private_releases import BegunRun
from fedlm.simulations.pretraining import private_steps
from fedlm.simulations.pretraining import run as run_module
from fedlm.simulations.pretraining.preparing import prepare_pretraining
from fedlm.simulations.pretraining.settings import Pretraining
from tests.simulations.pretraining import small_runs
from tests.simulations.pretraining.small_runs import PRIVATE, Interrupt, described


@pytest.fixture(scope="module")
def train(small_store, tmp_path_factory):
    sizes = {"layers": 1, "heads": 1, "embedding": 8, "mlp": 8, "max_length": 6, "tied": True}
    model = described(tmp_path_factory.mktemp("model"), "sasrec", **sizes)
    return functools.partial(small_runs.train, data=small_store, model=model, dropout=0.4)


@pytest.mark.long
def test_a_run_that_goes_on_drops_the_same(train, tmp_path):
    whole = train(tmp_path / "whole", **PRIVATE)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", Interrupt(2), **PRIVATE)
    assert train(tmp_path / "run", **PRIVATE)["parameters_sha256"] == whole["parameters_sha256"]
    # Bookkeeping, which keeps no example's gradient, takes the masks.
    assert whole["clipping_method"] == "bookkeeping"


@pytest.mark.long
@pytest.mark.parametrize(
    "sampling",
    [{"sampling": "balls_in_bins"}, {"sampling": "min_separation", "mechanism": "banded", "bands": 2}],
    ids=["balls_in_bins", "min_separation"],
)
def test_a_run_that_goes_on_is_sampled_as_it_was_and_says_so(train, tmp_path, sampling, monkeypatch):
    """Its noise is the secret's, so that only a run of the same folder draws the same."""
    for method in (balls_in_bins, min_separation):
        monkeypatch.setattr(method, "_MOST_DRAWS", 4000)
    private = {"privacy": "dpsgd", "noise_multiplier": 1.0, "dropout": 0.0} | sampling
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", Interrupt(2), **private)
    train(tmp_path / "run", **private)
    ledger = PrivacyLedger(tmp_path / "run" / "privacy" / "ledger.jsonl")
    assert ledger.plan.participation.kind == sampling["sampling"]
    assert "Monte Carlo" in state(ledger).total.assumptions[1]


@pytest.mark.long
def test_what_is_dropped_changes_training_and_no_score(train, tmp_path):
    # Without a step that moves anything, scores are of the same model.
    still = [train(tmp_path / f"still{rate}", dropout=rate, learning_rate=1e-30) for rate in (0.0, 0.4)]
    assert still[0]["test_loss"] == pytest.approx(still[1]["test_loss"], rel=1e-6)
    moved = [train(tmp_path / f"moved{rate}", dropout=rate, steps=1) for rate in (0.0, 0.4)]
    assert moved[0]["parameters_sha256"] != moved[1]["parameters_sha256"]


def test_nobody_can_compute_what_a_private_run_drops(train, tmp_path, monkeypatch):
    seeds = []

    def stop(*arguments, transform, **named):
        seeds.append(transform.seed)
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "logical_batches", stop)
    for noise_seed in ("entropy", "entropy", "experiment"):
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / f"run{len(seeds)}", **PRIVATE | {"noise_seed": noise_seed})
    assert [len(secret) for secret in seeds[:2]] == [32, 32]
    assert seeds[0] != seeds[1]
    assert seeds[2] == 0


@pytest.mark.long
def test_the_number_of_bands_is_searched_for_once(small_store, tmp_path, monkeypatch):
    settings = {"model": "cifg_tiny", "data": small_store, "steps": 4, "batch_size": 8, "length": 8}
    settings = compose(Pretraining, **settings, mechanism="banded", epsilon=8.0, delta=1e-5)
    begun = prepare_pretraining(settings, tmp_path)
    (tmp_path / "privacy").mkdir()
    PrivacyLedger(tmp_path / "privacy" / "ledger.jsonl").begin(begun.plan, begun.delta, "commitment", {})
    monkeypatch.setattr(private_steps, "best_bands", lambda *_: pytest.fail("searched for again"))
    goes_on = prepare_pretraining(settings, tmp_path)
    assert begun.plan == goes_on.plan == goes_on.going_on(BegunRun(begun.plan, begun.origins)).plan


@pytest.mark.long
@pytest.mark.parametrize("private", [True, False])
def test_a_private_run_is_ended_by_no_score_on_anybodys_text(small_store, tmp_path, monkeypatch, private):
    """Who is held out may be among those whom this run, or one that it begins with, was trained on."""
    settings = {"model": "cifg_tiny", "data": small_store, "steps": 3, "batch_size": 8, "length": 8}
    noise = {"noise_multiplier": 1.0, "delta": 1e-5} if private else {"privacy": "none"}
    settings = compose(Pretraining, **settings, **noise, evaluate_every=1, heldout_examples=8, test_examples=8)
    monkeypatch.setattr(run_module._Training, "_evaluate", lambda *_: Scores(*[math.nan] * 4))
    assert run_module.run_pretraining(settings, tmp_path)["steps"] == (3 if private else 1)
