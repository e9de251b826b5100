"""One experiment from beginning to end: resume, rounds, scores, checkpoints, summary."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedlm.fl_core.privacy.origins.ancestry import NOT_PRIVATE
from fedlm.fl_core.processes import gather, is_first, lost_processes, together
from fedlm.fl_core.runs.capabilities.interface import Capability
from fedlm.fl_core.runs.driver import Step
from fedlm.fl_core.runs.files.metrics_log import METRICS_FILE, read_rows
from fedlm.fl_core.runs.outcome import fit_parameters
from fedlm.fl_core.runs.run_folder import RunFolder
from fedlm.models.arguments import StrPath, checked_arguments
from fedlm.models.base import Model, Params
from fedlm.models.precision import precision_scope
from fedlm.models.shown import facts_table, in_a_line
from fedlm.simulations.evaluation.client_scores import client_columns, write_table
from fedlm.simulations.experiments.configuration import Experiment
from fedlm.simulations.experiments.preparation import PreparedExperiment, prepare
from fedlm.simulations.experiments.simulated_run import SimulatedRun, copied

Observer = Callable[[dict[str, Any], int], None]
"""Called with the metrics row of each round and the number of rounds in all."""


class FinishedRound(NamedTuple):
    """A round of which everything may be seen.

    Attributes:
      row: its metrics, as the run records them.
      rounds: how many there are in all.
      params: the model's parameters after it, which nothing may write to. None where they may not be seen: with privacy
        they may be once they are released, with the last of the rounds of a checkpoint.

    Example:
      >>> finished = FinishedRound(row={"round": 0, "train_loss": 3.2}, rounds=10, params=None)
      >>> finished.row["train_loss"]
      3.2
    """

    row: Mapping[str, Any]
    rounds: int
    params: Params | None

    def __repr__(self) -> str:
        has = None if self.params is None else "..."
        return in_a_line(self, round=self.row.get("round"), rounds=self.rounds, params=has)


@dataclass(frozen=True, repr=False)
class FinishedRun:
    """A run that has ended.

    Attributes:
      summary: what `summary.json` says: scores, privacy, settings, the machine.
      rows: the metrics of its rounds.
      model: what it trained.
      read_params: gives the last parameters.

    Example:
      >>> import fedlm
      >>> model = fedlm.create_model("cifg_tiny", vocabulary_size=50)
      >>> run = FinishedRun({"privacy": "NOT PRIVATE"}, [], model, lambda: {"bias": jnp.zeros(50)})
      >>> run.privacy, run.params["bias"].shape
      ('NOT PRIVATE', (50,))
    """

    summary: dict[str, Any]
    rows: list[dict[str, Any]]
    model: Model
    read_params: Callable[[], Params]

    def __repr__(self) -> str:
        known = {name: self.summary[name] for name in ("status", "rounds", "test_loss") if name in self.summary}
        private = self.summary.get("privacy_guarantee") is not None
        return in_a_line(self, model=self.model.name, **known, privacy="see .privacy" if private else NOT_PRIVATE)

    def _repr_html_(self) -> str:
        """Make the table of what a notebook shows; the privacy stands there whole."""
        names = ("status", "rounds", "parameters", "test_loss", "test_perplexity", "test_accuracy", "privacy")
        return facts_table({"model": self.model.name} | {name: self.summary.get(name) for name in names})

    @functools.cached_property
    def params(self) -> Params:
        """The last parameters."""
        return self.read_params()

    @property
    def privacy(self) -> str:
        """What is stated of its privacy: epsilon and delta with unit, adjacency and assumptions, or NOT PRIVATE."""
        return self.summary["privacy"]


CLIENTS_TABLE = "test_clients.parquet"


@checked_arguments
def run_experiment(
    experiment: Experiment,
    out: StrPath,
    observe: Observer = lambda row, rounds: None,
    *,
    save_client_scores: bool = False,
    brought: Sequence[Capability] = (),
) -> dict[str, Any]:
    """Run an experiment, or the rest of it where `out` holds an unfinished one.

    Writes `metrics.jsonl`, TensorBoard events, checkpoints and, when all is done, `summary.json`. Killed at any
    instant and started again, it ends with the same parameters, bit for bit, on the same kind of machine with
    the same number of devices and lanes.

    With privacy, nothing that was made of a model is recorded, or observed, before the model is in a checkpoint and its
    release in the ledger.

    Several processes that `jax.distributed` has joined call it together, with the same settings. They train and score
    on the devices of all of them; only the first touches the folder. The result is the same, bit for bit, as that of
    one process with as many devices.

    Args:
      out: folder of the run; made where absent.
      observe: see `Observer`; called in the first process.
      save_client_scores: write `test_clients.parquet` too, a row a test client.
      brought: what a program adds to what settings name.

    Raises:
      UserError: settings, data or an earlier run in `out` do not fit, or processes differ in them.

    Example:
      >>> import fedlm
      >>> experiment = fedlm.compose(Experiment, model="cifg_tiny", data=Path("runs/stdlib"), rounds=20)
      >>> run_experiment(experiment, Path("runs/cifg"))["test_perplexity"]  # doctest: +SKIP
      57.1
    """
    folder = Path(out)
    prepared = together(lambda: prepare(experiment, brought, folder))

    def see(finished: FinishedRound) -> None:
        observe(dict(finished.row), finished.rounds)

    return run_prepared(prepared, folder, see, save_client_scores=save_client_scores).summary


@lost_processes()
def run_prepared(
    prepared: PreparedExperiment,
    out: Path,
    see: Callable[[FinishedRound], bool | None] = lambda finished: None,
    *,
    save_client_scores: bool = False,
    may_stop: bool = False,
) -> FinishedRun:
    """Run an experiment that has been found to fit; see `run_experiment`.

    Args:
      prepared: the experiment.
      out: folder of the run; made where absent.
      see: called with each round in the first process, once it may be seen.
      save_client_scores: write `test_clients.parquet` too, a row a test client.
      may_stop: end the run after a round for which `see` returns True.
    """
    prepared.identity.check_same_in_all_processes(prepared.precision)
    finished = gather(together(lambda: _finished(prepared, out, save_client_scores)))[0]
    if finished is not None:
        return _found(prepared, out, finished)
    with precision_scope(prepared.precision), RunFolder(out, private=prepared.privacy is not None) as folder:
        simulated, stops = SimulatedRun(prepared, folder), _Stops(may_stop)

        def observe(row: dict[str, Any]) -> None:
            params = copied(simulated.params) if simulated.is_newest(row) else None
            stops.asked |= bool(see(FinishedRound(row, prepared.rounds, params)))

        simulated.run.take(stops.until(simulated.rounds()), observe)
        if stops.stopped:
            simulated.save()
        test, clients = simulated.test()
        if is_first():
            names = prepared.scoring.test.client_ids
            _write_table(out / CLIENTS_TABLE, client_columns(clients, names) if save_client_scores else None)
        stopped = {"stopped_by_callback": True} if stops.stopped else {}
        summary = simulated.finish(test, clients, stopped)
        params = simulated.params
        return FinishedRun(summary, list(folder.rows), prepared.model, lambda: params)


class _Stops:
    """Ends an iteration where somebody asked for it, in all processes alike."""

    def __init__(self, may_stop: bool):
        self._may_stop, self.asked, self.stopped = may_stop, False, False

    def until(self, steps: Iterator[Step]) -> Iterator[Step]:
        for step in steps:
            yield step
            # The next step needs the memory.
            del step
            if self._may_stop and gather(self.asked)[0]:
                self.stopped = True
                return


def _found(prepared: PreparedExperiment, out: Path, summary: dict[str, Any]) -> FinishedRun:
    """Make what is to be known of a run that had ended before."""

    def read_params() -> Params:
        # The libraries of privacy take a while to load.
        from fedlm.fl_core.runs.statements.publishing import released

        arrays = released(out).params
        like = jax.eval_shape(prepared.model.init, jax.random.key(0))
        return jax.tree_util.tree_map(jnp.asarray, fit_parameters(arrays, like, out))

    return FinishedRun(summary, read_rows(out / METRICS_FILE), prepared.model, read_params)


def _finished(prepared: PreparedExperiment, out: Path, save_client_scores: bool) -> dict[str, Any] | None:
    if not is_first() or (save_client_scores and not (out / CLIENTS_TABLE).exists()):
        return None
    return prepared.identity.finished_summary(out, "rounds")


def _write_table(path: Path, table: dict[str, Any] | None) -> None:
    if table is not None:
        write_table(path, table)
    else:
        # A table from before would be of other parameters than the summary.
        path.unlink(missing_ok=True)
