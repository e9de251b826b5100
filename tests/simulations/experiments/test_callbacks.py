"""The ready-made callbacks, with libraries that only remember what they were told."""

import sys
from types import SimpleNamespace

import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.simulations.experiments.callbacks import EarlyStopping, MlflowCallback, WandbCallback
from fedlm.simulations.experiments.experiment import FinishedRound

SUMMARY = {"status": "finished", "test_loss": 2.0, "privacy": "NOT PRIVATE", "machine": {"devices": 1}, "audit": None}


def told(callback):
    """Take a callback through a run of two rounds."""
    callback.on_begin({"rounds": 2, "model": "tiny"})
    for number, loss in enumerate((3.0, None)):
        row = {"round": number, "train_loss": 3.5 - number, "heldout_loss": loss}
        assert not callback.on_round(FinishedRound(row, 2, None))
    callback.on_end(SUMMARY)


class FakeWandb:
    def __init__(self):
        self.inits, self.logged, self.summary, self.finished = [], [], {}, []

    def init(self, **settings):
        self.inits.append(settings)
        return self

    def log(self, numbers, step):
        self.logged.append((step, numbers))

    def finish(self, exit_code=0):
        self.finished.append(exit_code)


def test_weights_and_biases_is_told_settings_rounds_and_summary_but_nothing_of_private_clients(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    callback = WandbCallback(project="federated", mode="offline")
    told(callback)
    assert fake.inits == [{"config": {"rounds": 2, "model": "tiny"}, "project": "federated", "mode": "offline"}]
    assert fake.logged == [(0, {"train_loss": 3.5, "heldout_loss": 3.0}), (1, {"train_loss": 2.5})]
    assert fake.summary == {"status": "finished", "test_loss": 2.0, "privacy": "NOT PRIVATE"}
    callback.on_failure(RuntimeError())
    assert fake.finished == [0, 1]
    # Of a private run it is told nothing that was measured on clients.
    fake.logged.clear()
    callback.on_begin({"privacy": "gaussian"})
    row = {"round": 0, "train_loss": 3.5, "examples": 9, "noise_norm": 2.0, "heldout_loss": 3.0, "epsilon": 0.5}
    callback.on_round(FinishedRound(row, 2, None))
    callback.on_end(SUMMARY | {"training_data_sha256": "abc", "examples": 9, "privacy": "(epsilon = 1"})
    assert fake.logged == [(0, {"heldout_loss": 3.0, "epsilon": 0.5})]
    assert fake.summary == {"status": "finished", "test_loss": 2.0, "privacy": "(epsilon = 1"}


def test_mlflow_is_told_settings_rounds_and_summary(monkeypatch):
    calls = []
    names = ("set_experiment", "start_run", "log_params", "log_metrics", "set_tags", "end_run")
    fake = SimpleNamespace(
        **{name: lambda *given, name=name, **options: calls.append((name, *given, *options.items())) for name in names}
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    callback = MlflowCallback("federated", run_name="first")
    told(callback)
    assert calls == [
        ("set_experiment", "federated"),
        ("start_run", ("run_name", "first")),
        ("log_params", {"rounds": 2, "model": "tiny"}),
        ("log_metrics", {"train_loss": 3.5, "heldout_loss": 3.0}, ("step", 0)),
        ("log_metrics", {"train_loss": 2.5}, ("step", 1)),
        ("log_metrics", {"test_loss": 2.0}),
        ("set_tags", {"status": "finished", "privacy": "NOT PRIVATE"}),
        ("end_run",),
    ]
    callback.on_failure(RuntimeError())
    assert calls[-1] == ("end_run", ("status", "FAILED"))


@pytest.mark.parametrize(("callback", "module"), [(WandbCallback, "wandb"), (MlflowCallback, "mlflow")])
def test_a_library_that_is_not_there_says_what_to_install(callback, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=f"not installed.*pip install {module}"):
        callback()


def stops(values, **options):
    stopping = EarlyStopping("score", **options)
    return [bool(stopping.on_round(FinishedRound({"score": value}, 9, None))) for value in values]


def test_early_stopping_waits_as_long_as_it_is_told():
    assert stops([3, 2, 2, 1, 1, 1], patience=2) == [False, False, False, False, False, True]
    assert stops([1, 2, 2, 3], patience=1, smaller_is_better=False) == [False, False, True, False]
    assert stops([3, None, None, 4], patience=1) == [False, False, False, True], "rounds without a score do not count"
    with pytest.raises(ConfigurationError, match="patience is 0"):
        EarlyStopping(patience=0)
