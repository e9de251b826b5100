"""One call that runs a federated experiment of a program's own: settings by name, parts by name or by object."""

import copy
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fedlm.fl_core.client_algorithms.interface import ClientAlgorithm
from fedlm.fl_core.client_algorithms.registry import SGD
from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.processes import together
from fedlm.fl_core.rounds.cohorts import CohortSampler
from fedlm.fl_core.rounds.server_optimizers import OptaxOptimizer, OwnServerOptimizer
from fedlm.models.arguments import StrPath, checked_arguments
from fedlm.simulations.data.in_memory import DataInMemory
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.experiments.callbacks import Callback
from fedlm.simulations.experiments.configuration import Experiment
from fedlm.simulations.experiments.experiment import FinishedRound, FinishedRun, run_prepared
from fedlm.simulations.experiments.own_parts import (
    Evaluation,
    Named,
    OwnModel,
    OwnParts,
    checked_algorithm,
    settings_of_algorithm,
    take_object,
)
from fedlm.simulations.experiments.preparation import prepare


@checked_arguments
def simulate(
    *,
    model: StrPath | OwnModel | Named[Any],
    data: StrPath | TokenStore | DataInMemory,
    out: StrPath | None = None,
    client_algorithm: str | ClientAlgorithm | Named[Any] = SGD,
    server_optimizer: str | OptaxOptimizer | Named[Any] = "fedadam",
    cohort_sampler: str | CohortSampler | Named[Any] = "uniform",
    evaluation: Evaluation | None = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> FinishedRun:
    """Train one model in simulated federated rounds, or go on with a run that was begun in `out`.

    It is what `fedlm simulate` does, with the same settings by the same names and, for the same settings, the same
    bits; but what the command line has to name may be given by object here.

    Args:
      model: a name (`fedlm models` lists them; `module:NAME` for a `ModelEntry` of your own), a `Model` with the data's
        vocabulary, a `ModelEntry`, or a function that makes a `Model` of the size of the vocabulary.
      data: folder of a data set, a `TokenStore`, or a `DataInMemory`.
      out: folder of the run, in which it goes on where it was when it is called again; None for one that is removed.
      client_algorithm: a name (`module:NAME` for one of your own), or a `ClientAlgorithm`.
      server_optimizer: a name (`module:NAME` for one of your own), an optax optimizer, which brings its own learning
        rate, or a function that makes one of `server_learning_rate`, as `optax.adam` is.
      cohort_sampler: a name, or an object whose `sample(round_number)` gives the indices of a round's clients, without
        privacy only.
      evaluation: maps model and parameters to numbers for the rows of rounds that are scored; without privacy only.
      callbacks: see every round; see `Callback`.
      **settings: the other fields of `Experiment`, and of the records in it, by name: `rounds`, `cohort_size`,
        `client_learning_rate`, `length`, `privacy`, `seed`, ...

    An object without a name is known to this call alone: `named("mine", object)` gives one, without which a run with it
    does not go on. The name is what is compared then, not the object.

    Raises:
      UserError: settings, data, objects or an earlier run in `out` do not fit.

    Example:
      >>> from fedlm import DataInMemory, ModelEntry, simulate
      >>> from fedlm.models.families.cifg import CifgConfig, cifg
      >>> texts = {f"user {n}": ["the cat sat", "a dog ran to the cat"] for n in range(30)}
      >>> run = simulate(
      ...     model=ModelEntry(cifg, CifgConfig(embedding=4, hidden=4)),
      ...     data=DataInMemory.from_texts(texts, vocabulary_size=40),
      ...     rounds=2,
      ...     cohort_size=3,
      ...     length=6,
      ... )
      >>> len(run.rows), run.summary["status"], run.privacy
      (2, 'finished', 'NOT PRIVATE')
    """
    labels: dict[str, str] = {}
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    data = data.path if isinstance(data, TokenStore) else data
    known_algorithm = settings_of_algorithm(client_algorithm)
    brought = {
        "model": model,
        "data": data,
        "client_algorithm": client_algorithm if known_algorithm is None else known_algorithm["client_algorithm"],
        "server_optimizer": server_optimizer,
        "cohort_sampler": cohort_sampler,
    }
    objects = {name: take_object(name, given, labels) for name, given in brought.items()}
    algorithm, optimizer = objects["client_algorithm"], objects["server_optimizer"]
    own = OwnParts(
        model=objects["model"],
        data_set=objects["data"],
        client_algorithm=None if algorithm is None else checked_algorithm(algorithm),
        server_optimizer=None if optimizer is None else OwnServerOptimizer(optimizer),
        cohort_sampler=objects["cohort_sampler"],
        evaluation=evaluation,
        labels=labels,
    )
    if settings.get("privacy", "none") != "none":
        own.check_private()
    experiment = _experiment(
        {name: given for name, given in brought.items() if name not in labels},
        labels,
        settings | (known_algorithm or {}),
        own,
    )
    if any(callback.may_stop for callback in callbacks) and experiment.privacy.is_private:
        raise ConfigurationError(
            "a callback may stop the run, but epsilon needs a number of rounds that does not depend on their results; "
            "give the rounds that you want, and no such callback"
        )
    with ExitStack() as stack:
        if out is None:
            out = stack.enter_context(tempfile.TemporaryDirectory(prefix="fedlm-"))
        else:
            own.check_can_go_on(Path(out))
        return _run(experiment, own, Path(out), callbacks)


def _experiment(named: dict[str, Any], labels: dict[str, str], settings: dict[str, Any], own: OwnParts) -> Experiment:
    if isinstance(own.data_set, DataInMemory) and own.data_set.row_length is not None:
        settings = {"length": own.data_set.row_length, **settings}
    # What an object stands for is not read from the settings, whose checks know names only.
    stand_ins = {name: labels[name] for name in ("model", "data") if name in labels}
    values = settings | named | stand_ins
    return compose(Experiment, **values | {"data": Path(values["data"])})


def _run(experiment: Experiment, own: OwnParts, out: Path, callbacks: Sequence[Callback]) -> FinishedRun:
    prepared = together(lambda: prepare(experiment, [own], out))
    watching = _Watching(callbacks, prepared.identity.settings, experiment.privacy.is_private)
    try:
        run = run_prepared(prepared, out, watching.see, may_stop=any(callback.may_stop for callback in callbacks))
        watching.raise_held()
    except BaseException as error:
        watching.fail(error)
        raise
    watching.end(run.summary)
    return run


class _Watching:
    """Calls callbacks, none of them before there is a round to see, with copies of their own of what is recorded.

    What one raises in a private run is held until the run has come to its end, which must not follow from a round that
    it saw; nothing is called after it.
    """

    def __init__(self, callbacks: Sequence[Callback], settings: dict[str, Any], private: bool):
        self._callbacks, self._settings, self._private = callbacks, settings, private
        self._begun: list[Callback] = []
        self._held: Exception | None = None

    def see(self, finished: FinishedRound) -> bool:
        if not self._begun:
            for callback in self._callbacks:
                callback.on_begin(copy.deepcopy(self._settings))
                self._begun.append(callback)
        if self._held is not None:
            return False
        try:
            asked = [_asks_to_stop(callback, finished) for callback in self._callbacks]
        except Exception as error:
            if not self._private:
                raise
            error.add_note("raised by a callback; the private run went on to its end")
            self._held = error
            return False
        return any(asked)

    def raise_held(self) -> None:
        """Raise what a callback of a private run raised."""
        if self._held is not None:
            raise self._held

    def fail(self, error: BaseException) -> None:
        for callback in self._begun:
            try:
                callback.on_failure(error)
            except Exception as another:
                # The first error says why the run failed.
                error.add_note(f"{type(callback).__name__}.on_failure failed too: {type(another).__name__}: {another}")

    def end(self, summary: dict[str, Any]) -> None:
        for callback in self._begun:
            callback.on_end(copy.deepcopy(summary))


def _asks_to_stop(callback: Callback, finished: FinishedRound) -> bool:
    name = f"{type(callback).__name__}.on_round"
    given = callback.on_round(finished._replace(row=copy.deepcopy(finished.row)))
    try:
        asked = bool(given)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{name} gave a {type(given).__name__} that is neither true nor false, but must give True, False or nothing"
        ) from error
    if asked and not callback.may_stop:
        raise ConfigurationError(
            f"{name} gave {given!r}, which ends the run, but only a callback with may_stop = True in its class may; "
            "set it, or return nothing"
        )
    return asked
