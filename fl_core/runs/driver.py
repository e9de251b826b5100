"""The life of a run, written once for simulations, deployments and central training.

A run begins in its folder, or goes on from its newest checkpoint; its steps (rounds, or steps of an optimizer) are
recorded and saved; it ends with a summary. With privacy nothing that was made of a model is recorded, or observed,
before the model is in a checkpoint and its release in the ledger. What a step is, is up to who brings them.

Several processes that `jax.distributed` has joined call all of this together; only the first touches the folder.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.errors import CheckpointError, setting
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.privacy.origins.ancestry import NOT_PRIVATE, recorded_ancestry
from fedlm.fl_core.privacy.origins.publisher_claims import claims_as_json, not_private_with_claims
from fedlm.fl_core.privacy.origins.vocabulary_origin import ORIGIN_FIELD
from fedlm.fl_core.privacy.promise.plan import LEDGER_FILE
from fedlm.fl_core.privacy.record.standing import Standing
from fedlm.fl_core.privacy.settings import PRIVACY_FOLDER
from fedlm.fl_core.processes import gather, is_first, together
from fedlm.fl_core.rounds.tracing import span
from fedlm.fl_core.runs.endings import DIVERGED, FINISHED, UNANSWERED
from fedlm.fl_core.runs.files.checkpoints import parameters_digest
from fedlm.fl_core.runs.files.metrics_log import METRICS_FILE, finite_row, read_rows
from fedlm.fl_core.runs.identity import SUMMARY_FILE, RunIdentity
from fedlm.fl_core.runs.lineage import CommonPlace, Lineage
from fedlm.fl_core.runs.round_rows import DIVERGED_ROUNDS, Divergence, was_answered
from fedlm.fl_core.runs.run_folder import RunFolder
from fedlm.models.base import Params

if TYPE_CHECKING:
    # A run without privacy need not load the libraries of privacy.
    from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
    from fedlm.fl_core.runs.private_releases import PrivacyTerms, PrivateReleases

Observer = Callable[[dict[str, Any]], None]
"""Called with the metrics row of each step, once it may be seen, in the first process."""


class Step(NamedTuple):
    """One finished step."""

    done: int  # how many steps are done with it
    row: dict[str, Any]  # JSON-able numbers by name, with the folder's counter among them
    state: Callable[[], Any]  # gives what a checkpoint holds after it; called in all processes
    released: Callable[[], dict[str, Any]] = dict  # numbers to add to the row where a checkpoint is written


class Run:
    """One run in its folder.

    Attributes:
      standing: known from `resume` on.
      divergence: why it counts as diverged, if it does.
      saved: whether there is a checkpoint.
    """

    standing: Standing

    def __init__(
        self,
        folder: RunFolder,
        identity: RunIdentity,
        *,
        steps: int,
        save_every: int,
        find_divergence: Callable[[list[dict[str, Any]]], Divergence | None],
        privacy: "PrivacyTerms | None" = None,
        common: CommonPlace | None = None,
        seen: int = 0,
    ):
        """Prepare to begin, or to go on; nothing is written yet.

        Args:
          save_every: steps from one checkpoint to the next; there is one after the last step too.
          find_divergence: decides from the rows so far, of which only the last few may be there.
          privacy: what the run promises; it is not private where None.
          common: what all copies of the folder see; with privacy what the run reserves from where None.
          seen: of a run that is not private, steps that do not run again, whether a checkpoint has them or not.
        """
        self.folder, self._identity, self._steps, self._save_every = folder, identity, steps, save_every
        self._find_divergence, self._privacy, self._seen = find_divergence, privacy, seen
        common = privacy.reservation if common is None and privacy is not None else common
        forks_matter = privacy is not None or common is not None
        self._lineage = Lineage(folder.directory, common, folder.fence) if forks_matter else None
        self._releases: PrivateReleases | None = None
        self._withheld: list[dict[str, Any]] = []
        self.divergence: Divergence | None = None
        self.saved = False

    def resume(self, like: Any) -> Any:
        """Go back to the newest checkpoint, and forget what was recorded after it. Returns what the checkpoint holds in
        the first process; `like` in others, and where `standing.checkpoint` is 0. Raises UserError where the folder
        holds another run, or what it holds cannot be read or does not belong together."""
        standing, state = together(lambda: self._find(like)) if is_first() else together(lambda: (None, like))
        self.standing = Standing(*gather(standing)[0])
        self.saved = self.standing.checkpoint > 0
        self.folder.open_log(self.standing.first, self.standing.checkpoint)
        self.divergence = self._find_divergence(self.folder.rows)
        return state

    def earlier(self, like: Any) -> Iterator[tuple[int, Any]]:
        """Read the checkpoints there are, as rounds and state, the newest first; all processes call it, and those that
        are not the first are given `like`."""
        for rounds in sorted(gather(self.folder.checkpoint_rounds())[0], reverse=True):
            restore = functools.partial(self.folder.restore, rounds, like)
            yield rounds, together(restore if is_first() else lambda: like)

    def _find(self, like: Any) -> tuple[Standing, Any]:
        folder = self.folder
        if self._privacy is None and (folder.directory / PRIVACY_FOLDER / LEDGER_FILE).exists():
            raise CheckpointError(
                f"{folder.directory}: holds a private run, and this one has privacy none; give another {setting('out')}"
            )
        latest = max(folder.checkpoint_rounds(), default=0)
        if latest:
            found_about = folder.about(latest)
            self._identity.check(found_about, folder.directory)
            self._identity = self._identity.going_on(found_about)
        if self._privacy is None:
            self._go_on(latest > 0)
            standing = Standing(latest, max(latest, self._seen), self._steps)
            return standing, folder.restore(latest, like) if latest else like
        from fedlm.fl_core.runs.private_releases import PrivateReleases

        self._releases = releases = PrivateReleases(self._privacy, folder, like)
        if releases.ledger.records:
            # There may be no checkpoint yet, and what one says may have been changed.
            self._identity.check(releases.ledger.about, folder.directory)
            self._identity = self._identity.going_on(releases.ledger.about)
            _refuse_older_ledger(folder, releases.ledger)
        elif not latest and read_rows(folder.directory / METRICS_FILE):
            raise CheckpointError(
                f"{folder.directory}: holds a run that is not private, and this one is; give another {setting('out')}"
            )
        released = bool(releases.ledger.releases)
        standing, state = releases.resume(self._identity.about())
        self._go_on(released)
        return standing, state

    def _go_on(self, begun: bool) -> None:
        if self._lineage is not None:
            self._lineage.go_on(begun)

    @property
    def remaining(self) -> range:
        """The steps that are left; none where the run has diverged."""
        return range(self.standing.first, self.standing.first if self.divergence else self.standing.end)

    @property
    def ledger(self) -> "PrivacyLedger | None":
        """The record of releases, in the first process; None without privacy."""
        return self._releases.ledger if self._releases else None

    def take(
        self,
        steps: Iterable[Step],
        observe: Observer = lambda row: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Record steps and save their states, until the last, or divergence, or until `stopping` says that no other
        step should begin; the last one is saved then."""
        # No name may hold on to a step's arrays while the next is made.
        for ends_here in map(lambda step: self._take_one(step, observe, stopping), steps):
            if ends_here:
                break

    def _take_one(self, step: Step, observe: Observer, stopping: Callable[[], bool]) -> bool:
        row = finite_row(step.row)
        last_rows = (self.folder.rows[-DIVERGED_ROUNDS:] + self._withheld)[-DIVERGED_ROUNDS:]
        self.divergence = self._find_divergence([*last_rows, row])
        ends_here = self.divergence is not None or stopping()
        is_saved = ends_here or step.done == self.standing.end or step.done % self._save_every == 0
        if is_saved:
            row |= finite_row(step.released())
        self._withheld.append(row)
        if self._privacy is None:
            self._show(observe)
        if is_saved:
            self.save(step.done, step.state())
            self._show(observe)
        return ends_here

    def _show(self, observe: Observer) -> None:
        rows, self._withheld = self._withheld, []
        for row in rows:
            self.folder.append(row)
        for row in rows if is_first() else ():
            observe(row)

    def save(self, done: int, state: Any) -> None:
        """Make a state durable, of the structure that `resume` was given; with privacy, this releases it. Raises
        DiskError where it cannot be written."""
        with span("checkpoint"):
            together(lambda: self._save(done, state) if is_first() else None)
        self.saved = True

    def _save(self, done: int, state: Any) -> None:
        about = self._identity.about()
        if self._lineage is not None:
            self._lineage.check()
        if self._releases is None:
            self.folder.save(done, state, about)
        else:
            # The rows travel in the checkpoint, so that none is lost between its release and their being recorded.
            self._releases.save(done, jax.device_get(state), about | {"rows": self._withheld})

    def see(self, done: int) -> None:
        """Enter that the last of so many private steps may be seen by whoever runs it, and counts as released; when
        this returns, it may be."""
        assert self._releases is not None
        if self._lineage is not None:
            self._lineage.check()
        self._releases.see(done)

    def _without_promise(self) -> dict[str, Any]:
        about = self._identity.about()
        ancestry = recorded_ancestry(about)
        return {
            "privacy": not_private_with_claims(NOT_PRIVATE, ancestry),
            "ancestry": about.get("ancestry", []),
            **claims_as_json(ancestry, private=False),
            ORIGIN_FIELD: about[ORIGIN_FIELD],
        }

    def spent(self, done: int) -> dict[str, Any]:
        """See `fedlm.fl_core.runs.private_releases.PrivateReleases.spent`; empty in other processes than the first."""
        return self._releases.spent(done) if self._releases else {}

    def _status(self) -> str:
        if self.divergence is not None:
            return DIVERGED
        return UNANSWERED if self.folder.rows and not was_answered(self.folder.rows) else FINISHED

    def finish(self, params: Params, facts: dict[str, Any]) -> dict[str, Any]:
        """Write the summary, and return it in all processes."""
        statement = gather(self._releases.statement() if self._releases else self._without_promise())[0]
        summary = {
            "status": self._status(),
            "diverged_because": self.divergence.reason if self.divergence else None,
            f"diverged_at_{self.folder.counter}": self.divergence.round_number if self.divergence else None,
            f"{self.folder.counter}s": len(self.folder.rows),
            "parameters_sha256": parameters_digest(params),
            **statement,
            **facts,
        }
        if is_first():
            with self.folder.fence():
                write_atomically(self.folder.directory / SUMMARY_FILE, json_text(summary, indent=2) + "\n")
        return gather(summary)[0]


def _refuse_older_ledger(folder: RunFolder, ledger: "PrivacyLedger") -> None:
    """Refuse, as a CheckpointError, a ledger that lacks releases which metrics tell of: their noise would be drawn
    again, for sums that may differ."""
    told = max(
        (row[folder.counter] + 1 for row in read_rows(folder.directory / METRICS_FILE, folder.counter)), default=0
    )
    released = max((release.rounds for release in ledger.releases), default=0)
    if told > released:
        raise CheckpointError(
            f"{folder.directory}: {METRICS_FILE} tells of {told} {folder.counter}s, but {PRIVACY_FOLDER}/{LEDGER_FILE} "
            f"of {released}: it is an older copy, or was cut. Put it and the checkpoints back as they were, or begin "
            f"with another {setting('out')}"
        )
