"""The private part of an experiment: its noise, its ledger, and models that are durable before they are shown."""

import dataclasses
import hmac
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedlm.fl_core.aggregation import CohortAggregate
from fedlm.fl_core.runs.checkpoints import parameters_digest
from fedlm.fl_core.cohorts import CohortSampler
from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.privacy.accounting import Guarantee
from fedlm.fl_core.privacy.ledger import PrivacyLedger
from fedlm.fl_core.privacy.plan import LEDGER_FILE, PrivacyPlan
from fedlm.fl_core.privacy.private_rounds import PrivacyState, PrivateAggregation, PrivateMean, PrivateRounds
from fedlm.fl_core.privacy.releases import Releases
from fedlm.fl_core.privacy.settings import PRIVACY_FOLDER
from fedlm.fl_core.privacy.private_cohorts import PoissonSampler
from fedlm.fl_core.server_optimizers import ServerState
from fedlm.fl_core.runs.metrics_log import finite_row
from fedlm.fl_core.runs.round_rows import NOT_PRIVATE
from fedlm.fl_core.runs.run_folder import RunFolder


class PrivateCheckpoint(NamedTuple):
    """What a checkpoint of a private run holds.

    Attributes:
      server: the server's state.
      privacy: what is durable of the noise and the clip norm.
    """

    server: ServerState
    privacy: PrivacyState


class PrivateRun:
    """Runs of one process that releases models with noise.

    Attributes:
      rounds: makes private means.
      end: one more than the last round that may run.
    """

    def __init__(
        self,
        aggregation: PrivateAggregation,
        delta: float,
        seed: int | None,
        folder: RunFolder,
        about: dict[str, Any],
        repeatable: bool = True,
    ):
        """Prepare to begin, or to go on; nothing is written yet.

        Args:
          aggregation: plan, clip norm and denominator.
          delta: at which epsilon is stated.
          seed: the root seed that noise follows from, or None for the operating system's entropy.
          folder: of the run.
          about: facts that are saved with each checkpoint.
          repeatable: whether rounds that are run again with the same noise come to the same sums.
        """
        self._aggregation, self._delta, self._folder, self._about = aggregation, delta, folder, about
        self._secret = seed is None
        new_secret = None if seed is None else repeatable_secrets(seed)
        self._releases = Releases(folder.directory / PRIVACY_FOLDER, new_secret, repeatable)
        self._unpublished: list[dict[str, Any]] = []

    def resume(
        self, fresh: ServerState, check: Callable[[dict[str, Any]], None]
    ) -> tuple[ServerState, PrivacyState, int]:
        """Begin, or find out where an interrupted run stands.

        Args:
          fresh: the server's state of a run that begins.
          check: refuses a checkpoint of another run, by the facts saved with it.

        Returns:
          The server's state, what is known of noise and clip norm, and the number of the next round.

        Raises:
          UserError: ledger, secret and checkpoints do not belong together.
        """
        like = PrivateCheckpoint(fresh, self._template(fresh))
        stored = StoredStates(self._folder, like)
        latest = stored.latest_round()
        if latest:
            check(self._folder.about(latest))
        elif self._releases.ledger.records:
            # No checkpoint says yet whose run this is; whether its noise is secret must not change all the same.
            check(self._releases.ledger.about)
        found = self._releases.resume(self._aggregation.plan, self._delta, self._about, stored)
        self.rounds = PrivateRounds(self._aggregation, found.secret, fresh.params, found.first, found.end)
        self.end = found.end
        if not found.checkpoint:
            self._folder.open_log(found.next_round)
            return fresh, self.rounds.init(), found.next_round
        checkpoint = stored.read(found.checkpoint)
        self._folder.open_log(found.next_round, self._folder.about(found.checkpoint)["rows"])
        if found.fresh_noise:
            return checkpoint.server, self.rounds.init(float(checkpoint.privacy.clip_norm)), found.next_round
        return checkpoint.server, self.rounds.restore(checkpoint.privacy), found.next_round

    def _template(self, fresh: ServerState) -> PrivacyState:
        # Which secret and which rounds does not matter for shapes.
        rounds = PrivateRounds(self._aggregation, bytes(32), fresh.params)
        return rounds.durable(rounds.init())

    def keep_secret(self, sampler: CohortSampler) -> CohortSampler:
        """Draw the cohorts of a Poisson sampler from the run's secret, since who takes part must stay secret.

        Args:
          sampler: of the experiment, which draws from its root seed.

        Returns:
          The one to use.
        """
        if not self._secret or not isinstance(sampler, PoissonSampler):
            return sampler
        return dataclasses.replace(sampler, seed=self._releases.cohort_seed())

    def record(self, row: dict[str, Any]) -> None:
        """Keep a round's row back until its model is durable.

        Args:
          row: JSON-able numbers by name.
        """
        self._unpublished.append(finite_row(row))

    @property
    def unpublished(self) -> list[dict[str, Any]]:
        """Rows kept back so far."""
        return self._unpublished

    def publish(self, done: int, server: ServerState, mean: PrivateMean) -> list[dict[str, Any]]:
        """Make a model durable, then record the rows that were kept back.

        Args:
          done: how many rounds it has seen.
          server: the server's state.
          mean: of the last round.

        Returns:
          The rows, which may be shown from now on.

        Raises:
          DiskError: the model cannot be made durable.
        """
        checkpoint = jax.device_get(PrivateCheckpoint(server, self.rounds.durable(mean.state)))
        about = self._about | {"rows": self._unpublished}
        # Once the ledger has the intent these rounds count as released, whether their checkpoint fits the disk or not.
        self._folder.check_room(checkpoint)
        write = lambda: self._folder.save(done, checkpoint, about)  # noqa: E731
        self._releases.save(done, parameters_digest(checkpoint), write)
        rows, self._unpublished = self._unpublished, []
        for row in rows:
            self._folder.append(row)
        return rows

    @property
    def ledger(self) -> PrivacyLedger:
        """The record of this run's releases."""
        return self._releases.ledger

    def statement(self) -> dict[str, Any]:
        """State what the run has spent so far.

        Returns:
          See `statement_of`.
        """
        spent = self._releases.ledger.spent()
        return statement_of(spent, self._secret)


def statement_of(spent: Guarantee, secret: bool) -> dict[str, Any]:
    """Put a guarantee into words.

    Args:
      spent: what was accounted.
      secret: whether nobody can compute the noise again.

    Returns:
      For the summary: `noise_multiplier`; `privacy`, one sentence; and `privacy_guarantee`, all of it, None where there
      is none.
    """
    noise = {"noise_multiplier": spent.noise_multiplier}
    if secret:
        return noise | {"privacy": spent.sentence(), "privacy_guarantee": spent.as_json()}
    would = (
        f"{NOT_PRIVATE}: the noise follows from the experiment's seed. With secret noise it would be {spent.sentence()}"
    )
    return noise | {"privacy": would, "privacy_guarantee": None}


def private_row(mean: PrivateMean, aggregate: CohortAggregate) -> dict[str, Any]:
    """Make the part of a round's row that is about privacy.

    Args:
      mean: of the round.
      aggregate: of its cohort.

    Returns:
      JSON-able numbers by name.
    """
    ratio = mean.signal_norm / mean.noise_norm if mean.noise_norm else None
    counted = float(aggregate.clients - aggregate.dropped)
    return {
        "clipped_fraction": float(aggregate.clipped) / counted if counted else None,
        "clip_norm": float(mean.state.clip_norm),
        "noise_norm": mean.noise_norm,
        "signal_to_noise": ratio,
    }


def known_plan(out: Path) -> PrivacyPlan | None:
    """Read the plan of a run that was begun before.

    Args:
      out: folder of the run.

    Returns:
      Its plan, or None where no private run was begun there.
    """
    path = out / PRIVACY_FOLDER / LEDGER_FILE
    ledger = PrivacyLedger(path) if path.exists() else None
    return ledger.plan if ledger is not None and ledger.records else None


class StoredStates:
    """See `fedlm.fl_core.privacy.releases.StoredCheckpoints`."""

    def __init__(self, folder: RunFolder, like: Any):
        """Bind a folder to what its checkpoints hold.

        Args:
          folder: of the run.
          like: arrays, or shapes, of the structure of a checkpoint.
        """
        self._folder, self._like = folder, like
        self._read: dict[int, Any] = {}

    def latest_round(self) -> int:
        """See `StoredCheckpoints.latest_round`."""
        return max(self._folder.checkpoint_rounds(), default=0)

    def digest(self, rounds: int) -> str | None:
        """See `StoredCheckpoints.digest`."""
        if rounds not in self._folder.checkpoint_rounds():
            return None
        try:
            return parameters_digest(self.read(rounds))
        except CheckpointError:
            return "not readable"

    def read(self, rounds: int) -> Any:
        """Read a checkpoint, which the next call with the same number does not do again.

        Args:
          rounds: that it has seen.

        Returns:
          What it holds.
        """
        if rounds not in self._read:
            self._read = {rounds: self._folder.restore(rounds, self._like)}
        return self._read[rounds]


def repeatable_secrets(seed: int) -> Callable[[int], bytes]:
    """Make secrets that anybody who knows the seed can compute: repeatable, and not private.

    Args:
      seed: the root seed.

    Returns:
      From the number of a generation of noise to its secret.
    """
    return lambda generation: hmac.digest(seed.to_bytes(8, "little"), b"noise of generation %d" % generation, "sha256")
