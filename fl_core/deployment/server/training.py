"""The rounds of a deployment: the round loop, the noise, the ledger and the checkpoints of a simulation, with clients
that dial in.

With privacy every round's model is in a checkpoint, and in the ledger, before any client can download it.
"""

import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.cohorts import CohortSampler, WhoeverChecksIn
from fedlm.fl_core.deployment.server.round_attempt import DrainedError
from fedlm.fl_core.deployment.server.settings import MAY_CHANGE, Deployment
from fedlm.fl_core.deployment.state.retrying import with_retries
from fedlm.fl_core.deployment.state.state import ReleaseRecord, State, StateError
from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.privacy.plan import LEDGER_FILE
from fedlm.fl_core.privacy.settings import PRIVACY_FOLDER
from fedlm.fl_core.randomness import device_key
from fedlm.fl_core.round_loop import CohortRunner, RoundResult, run_rounds
from fedlm.fl_core.runs.checkpoints import parameters_digest
from fedlm.fl_core.runs.round_rows import NOT_PRIVATE, Divergence, find_divergence, round_row
from fedlm.fl_core.runs.run_folder import RunFolder
from fedlm.fl_core.server_optimizers import ServerState, init_server
from fedlm.models.base import Model, Params

if TYPE_CHECKING:
    # A run without privacy need not load the libraries of privacy.
    from fedlm.fl_core.privacy.ledger import PrivacyLedger
    from fedlm.fl_core.privacy.private_rounds import PrivacyState
    from fedlm.fl_core.runs.private_run import PrivateRun

Observer = Callable[[dict[str, Any]], None]
"""Called with the metrics row of each round, once its model is durable."""

Score = Callable[[Params], dict[str, Any]]
"""From parameters to what is known of them, by name, for the round's row."""

_RUN_FILE = "run"


class _Resumed(NamedTuple):
    server: ServerState
    first: int
    end: int


class DeployedTraining:
    """A run whose clients dial in; used in one thread."""

    def __init__(
        self,
        deployment: Deployment,
        model: Model,
        vocabulary: str,
        folder: RunFolder,
        state: State,
        score: Score | None = None,
        sampler: CohortSampler | None = None,
    ):
        """Find out where the run stands.

        Args:
          deployment: its settings.
          model: what is trained.
          vocabulary: fingerprint of the tokenizer.
          folder: of the run, entered.
          state: what is known of clients and rounds.
          score: scores the model every so many rounds; None for never.
          sampler: names the cohorts, for runs that repeat a simulation; whoever checks in takes part where None.

        Raises:
          UserError: settings, folder and state do not belong together.
        """
        self._deployment, self._folder, self._state = deployment, folder, state
        self._score, self._sampler = score, sampler or WhoeverChecksIn()
        name = _run_name(folder.directory)
        self._about: dict[str, Any] = {"experiment": deployment.as_json(), "vocabulary": vocabulary, "run": name}
        state.claim(name)
        fresh = init_server(deployment.server_config(), model.init(device_key(deployment.seed, "init")))
        self._divergence: Divergence | None = None
        self._private: PrivateRun | None = None
        self._privacy: PrivacyState | None = None
        resume = self._resume if deployment.privacy == "none" else self._resume_privately
        self._resumed = resume(fresh)
        self._agree_with_state(self._resumed.first)

    @property
    def params(self) -> Params:
        """The newest parameters that may be seen."""
        return self._resumed.server.params

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics rows of released rounds so far; another thread may add some."""
        return self._folder.rows

    @property
    def ledger(self) -> "PrivacyLedger | None":
        """The record of releases; None without privacy."""
        return self._private.ledger if self._private else None

    def _resume(self, fresh: ServerState) -> _Resumed:
        if (self._folder.directory / PRIVACY_FOLDER / LEDGER_FILE).exists():
            raise CheckpointError(
                f"{self._folder.directory}: holds a private run, and this one has privacy none; give another --out"
            )
        server, first = self._folder.resume(fresh, self._check)
        return _Resumed(server, first, self._deployment.rounds)

    def _resume_privately(self, fresh: ServerState) -> _Resumed:
        from fedlm.fl_core.privacy.private_plan import plan_aggregation
        from fedlm.fl_core.runs.private_run import PrivateRun, known_plan

        settings = self._deployment
        assert settings.update_clip_norm is not None
        assert settings.delta is not None
        aggregation = plan_aggregation(
            settings,
            settings.rounds,
            settings.cohort_size,
            settings.update_clip_norm,
            settings.participation,
            settings.delta,
            known_plan(self._folder.directory),
        )
        seed = settings.seed if settings.noise_seed == "experiment" else None
        self._private = PrivateRun(aggregation, settings.delta, seed, self._folder, self._about, repeatable=False)
        server, self._privacy, first = self._private.resume(fresh, self._check)
        return _Resumed(server, first, self._private.end)

    def _check(self, found: dict[str, Any]) -> None:
        old, new = found["experiment"], self._about["experiment"]
        changed = [name for name in new if name not in MAY_CHANGE and old.get(name) != new[name]]
        if changed:
            what = "; ".join(f"{name} was {old.get(name)} and is now {new[name]}" for name in changed)
            raise CheckpointError(
                f"{self._folder.directory}: holds a run with other settings: {what}. Give the same settings to go on "
                "with it, or another --out to begin a new one"
            )
        if found["vocabulary"] != self._about["vocabulary"]:
            raise CheckpointError(
                f"{self._folder.directory}: holds a run on another vocabulary; give the tokenizer that it was begun "
                "with, or another --out"
            )

    def _agree_with_state(self, first: int) -> None:
        finished = self._state.finished_rounds()
        if finished < first:
            raise StateError(
                f"{self._folder.directory}: the run has released {first} rounds, but its database knows of {finished}: "
                "it is an older copy, and who took part is lost with it; put back the one that belongs to the run"
            )
        self._state.forget_rounds(first)
        self._record_release()

    def _record_release(self) -> None:
        last = self._private.ledger.last_release if self._private else None
        if last is not None:
            record = ReleaseRecord(last.rounds, last.digest, time.time())
            with_retries(lambda: self._state.record_release(record))

    def run(self, runner: CohortRunner, observe: Observer, stopping: Callable[[], bool]) -> bool:
        """Run rounds until the last, or until asked to stop.

        Args:
          runner: trains cohorts.
          observe: see `Observer`.
          stopping: whether no other round should begin.

        Returns:
          Whether the run is over.
        """
        server, first, end = self._resumed
        self._divergence = find_divergence(self._folder.rows)
        rounds = range(first, first if self._divergence else end)
        optimization = self._deployment.optimization()
        private = self._private.rounds if self._private else None
        results = run_rounds(server, rounds, runner, self._sampler, optimization, private, self._privacy)
        del server
        self._round_began = time.monotonic()
        # No name may hold on to a round's sums while the next is collected.
        try:
            for last in map(lambda result: self._end_round(result, observe, stopping), results):
                if last:
                    break
        except DrainedError:
            self._save_without_privacy()
        over = self._divergence is not None or self._resumed.first >= end
        if over:
            self._summarise()
        return over

    def _end_round(self, result: RoundResult, observe: Observer, stopping: Callable[[], bool]) -> bool:
        """Make a round's model durable; returns whether it is the last."""
        row, done = round_row(result), result.round_number + 1
        end = self._resumed.end
        if self._score is not None and (done % self._deployment.evaluate_every == 0 or done == end):
            row |= self._score(result.state.params)
        self._round_began, row["seconds"] = time.monotonic(), time.monotonic() - self._round_began
        self._resumed = self._resumed._replace(server=result.state, first=done)
        self._divergence = find_divergence([*self._folder.rows, row])
        last = done == end or self._divergence is not None or stopping()
        self._publish(result, row, last, observe)
        return last

    def _publish(self, result: RoundResult, row: dict[str, Any], last: bool, observe: Observer) -> None:
        done = result.round_number + 1
        if self._private is None:
            self._folder.append(row)
            if last or done % self._deployment.checkpoint_every == 0:
                self._save_without_privacy()
        else:
            from fedlm.fl_core.runs.private_run import private_row

            assert result.private is not None
            self._private.record(row | private_row(result.private, result.cohort.aggregate))
            self._private.publish(done, result.state, result.private)
            self._record_release()
        observe(self._folder.rows[-1])

    def _save_without_privacy(self) -> None:
        """Save the newest model; with privacy it is saved already."""
        if self._private is None and self._resumed.first:
            self._folder.save(self._resumed.first, self._resumed.server, self._about)

    def _summarise(self) -> None:
        privacy = self._private.statement() if self._private else {"privacy": NOT_PRIVATE}
        summary = {
            "status": "diverged" if self._divergence else "finished",
            "diverged_because": self._divergence.reason if self._divergence else None,
            "rounds": len(self._folder.rows),
            "parameters_sha256": parameters_digest(self.params),
            **privacy,
            **self._about,
        }
        write_atomically(self._folder.directory / "summary.json", json.dumps(summary, indent=2) + "\n")


def _run_name(directory: Path) -> str:
    """Give a run a name that no other has, once."""
    path = directory / _RUN_FILE
    if not path.exists():
        write_atomically(path, secrets.token_hex(16))
    return path.read_text(encoding="utf-8")
