"""Callbacks: what a program does with each round of its run, once the round may be seen.

With privacy nothing that was made of a model may be seen before its release. Then the rounds since the last release
come together, and only the last of them, whose model was released, comes with parameters.
"""

import importlib
import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from fedlm.fl_core.errors import ConfigurationError
from fedlm.models.arguments import checked_arguments
from fedlm.simulations.experiments.experiment import FinishedRound


class Callback:
    """What a program does with the rounds of a run: override what you need.

    Called in the first process only, with the rounds that this call of the run goes through: not with those from before
    it was resumed, and not at all where the run had ended already. What a callback raises ends the run, which can go on
    later; with privacy it is raised at the run's end, which does not follow from what a round gave.

    Example:
      >>> class Losses(Callback):
      ...     def __init__(self):
      ...         self.losses = []
      ...
      ...     def on_round(self, finished):
      ...         self.losses.append(finished.row["train_loss"])
      >>> losses = Losses()
      >>> losses.on_round(FinishedRound({"round": 0, "train_loss": 2.5}, rounds=1, params=None))
      >>> losses.losses
      [2.5]
    """

    may_stop = False
    """Whether `on_round` may ask for the end of the run; with privacy it may not, see `EarlyStopping`."""

    def on_begin(self, settings: Mapping[str, Any]) -> None:
        """Be told the run's settings, by their names, before the first round is seen."""

    def on_round(self, finished: FinishedRound) -> bool | None:
        """See a round. Returns True to end the run after it, where `may_stop`."""

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """See the summary of the run that has ended."""

    def on_failure(self, error: BaseException) -> None:
        """Be told that the run did not come to its end; only where `on_begin` was done. What this raises becomes a note
        of the error."""


class EarlyStopping(Callback):
    """Ends a run when a metric no longer gets better.

    Not with privacy: epsilon is accounted for a number of rounds that does not depend on what they gave.

    Example:
      >>> stopping = EarlyStopping(patience=2)
      >>> losses = [3.0, 2.0, 2.5, 2.1]
      >>> rows = ({"round": number, "heldout_loss": loss} for number, loss in enumerate(losses))
      >>> [bool(stopping.on_round(FinishedRound(row, rounds=9, params=None))) for row in rows]
      [False, False, False, True]
    """

    may_stop = True

    @checked_arguments
    def __init__(self, metric: str = "heldout_loss", patience: int = 3, smaller_is_better: bool = True):
        """Watch a metric of rows; those without it are passed over.

        Args:
          metric: its name.
          patience: how often in a row it may be no better than its best before.
          smaller_is_better: whether it is a loss.
        """
        if patience < 1:
            raise ConfigurationError(f"patience is {patience}, but must be at least 1")
        self.metric, self.patience, self._sign = metric, patience, 1.0 if smaller_is_better else -1.0
        self.on_begin({})

    def on_begin(self, settings: Mapping[str, Any]) -> None:
        self._best, self._waited = math.inf, 0

    def on_round(self, finished: FinishedRound) -> bool:
        value = finished.row.get(self.metric)
        if value is None:
            return False
        better = self._sign * value < self._best
        self._best, self._waited = min(self._best, self._sign * value), 0 if better else self._waited + 1
        return self._waited >= self.patience


_TOLD_OF_PRIVATE_RUNS = ("heldout_", "test_", "epsilon", "delta")
"""With which the names of numbers begin that trackers get of private runs: whoever reads a tracker is not the operator,
and no epsilon covers what was measured on clients, nor fingerprints of their text."""


class _Tracker(Callback):
    """Tells of settings, rows and the summary; of a private run only what is not measured on those who are trained
    on."""

    _private = False

    def on_begin(self, settings: Mapping[str, Any]) -> None:
        self._private = settings.get("privacy", "none") != "none"

    def told(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Leave out what is told to nobody, and what is neither a number nor words."""
        return {
            name: value
            for name, value in values.items()
            if isinstance(value, int | float | str)
            and (not self._private or name in ("privacy", "status") or name.startswith(_TOLD_OF_PRIVATE_RUNS))
        }


class WandbCallback(_Tracker):
    """Logs to Weights & Biases: settings as config, each round's row, and the scores of the summary; of a private run
    scores alone.

    Example:
      >>> WandbCallback(project="federated")  # doctest: +SKIP
    """

    def __init__(self, **init: Any):
        """Give what `wandb.init` takes, `project` or `mode` say. Raises ConfigurationError where wandb is not there."""
        self._wandb, self._init = _library("wandb", "Weights & Biases"), init
        self._run: Any = None

    def on_begin(self, settings: Mapping[str, Any]) -> None:
        super().on_begin(settings)
        self._run = self._wandb.init(**{"config": dict(settings), **self._init})

    def on_round(self, finished: FinishedRound) -> None:
        numbers = {name: value for name, value in self.told(finished.row).items() if name != "round"}
        self._run.log(numbers, step=finished.row["round"])

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update(self.told(summary))
        self._run.finish()

    def on_failure(self, error: BaseException) -> None:
        self._run.finish(exit_code=1)


class MlflowCallback(_Tracker):
    """Logs to MLflow: settings as parameters, each round's row, the scores of the summary, and what privacy it states;
    of a private run scores alone.

    Example:
      >>> MlflowCallback(experiment_name="federated")  # doctest: +SKIP
    """

    @checked_arguments
    def __init__(self, experiment_name: str | None = None, **start: Any):
        """Give what `mlflow.start_run` takes, `run_name` say. Raises ConfigurationError where mlflow is not there."""
        self._mlflow, self._experiment, self._start = _library("mlflow", "MLflow"), experiment_name, start

    def on_begin(self, settings: Mapping[str, Any]) -> None:
        super().on_begin(settings)
        if self._experiment is not None:
            self._mlflow.set_experiment(self._experiment)
        self._mlflow.start_run(**self._start)
        self._mlflow.log_params(dict(settings))

    def on_round(self, finished: FinishedRound) -> None:
        numbers = {name: float(value) for name, value in self.told(finished.row).items() if name != "round"}
        self._mlflow.log_metrics(numbers, step=finished.row["round"])

    def on_end(self, summary: Mapping[str, Any]) -> None:
        plain = self.told(summary)
        numbers = {name: float(value) for name, value in plain.items() if not isinstance(value, str)}
        self._mlflow.log_metrics(numbers)
        self._mlflow.set_tags({name: value for name, value in plain.items() if isinstance(value, str)})
        self._mlflow.end_run()

    def on_failure(self, error: BaseException) -> None:
        self._mlflow.end_run(status="FAILED")


def _library(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(f"{name} is not installed ({error}); pip install {module}") from error
