"""Central runs that drop activations in training."""

import functools

import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.simulations.pretraining import run as run_module
from tests.simulations.pretraining import small_runs
from tests.simulations.pretraining.small_runs import PRIVATE, Interrupt, described


@pytest.fixture(scope="module")
def train(small_store, tmp_path_factory):
    sizes = {"layers": 1, "heads": 1, "embedding": 8, "mlp": 8, "max_length": 6, "tied": True}
    model = described(tmp_path_factory.mktemp("model"), "sasrec", **sizes)
    return functools.partial(small_runs.train, data=small_store, model=model, dropout=0.4)


@pytest.mark.long
@pytest.mark.parametrize("private", [True, False])
def test_a_run_that_goes_on_drops_the_same(train, tmp_path, private):
    changes = PRIVATE if private else {}
    whole = train(tmp_path / "whole", **changes)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", Interrupt(2), **changes)
    assert train(tmp_path / "run", **changes)["parameters_sha256"] == whole["parameters_sha256"]
    # Bookkeeping, which keeps no example's gradient, takes the masks.
    assert whole["clipping_method"] == ("bookkeeping" if private else None)


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dropout": 1.0}, r"dropout is 1\.0, but must be at least 0 and below 1"),
        ({"model": "cifg_tiny"}, r"dropout is 0\.4, but the model 'cifg_tiny' has none"),
        ({"length": 7}, "has positions for 6"),
    ],
)
def test_what_does_not_fit_is_refused(train, tmp_path, changes, message):
    with pytest.raises(ConfigurationError, match=message):
        train(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()
