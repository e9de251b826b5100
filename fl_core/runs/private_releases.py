"""What a run writes down of its privacy: its ledger, the secret of its noise, and the statement of what was spent."""

import hmac
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.privacy.origins.ancestry import Phase
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.privacy.promise.plan import LEDGER_FILE, PrivacyPlan
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.record.participation_record import ParticipationRecord
from fedlm.fl_core.privacy.record.releases import Budget, Releases
from fedlm.fl_core.privacy.record.standing import Standing
from fedlm.fl_core.privacy.settings import PRIVACY_FOLDER
from fedlm.fl_core.privacy.statement import state, state_plan
from fedlm.fl_core.processes import gather, is_first, together
from fedlm.fl_core.runs.files.checkpoints import parameters_digest
from fedlm.fl_core.runs.lineage import CommonPlace
from fedlm.fl_core.runs.run_folder import RunFolder


class Reservation(Budget, CommonPlace, Protocol):
    """From which a run reserves what it may spend, and in which its copies see each other."""


class PrivacyTerms(NamedTuple):
    """What a run promises."""

    plan: PrivacyPlan
    delta: float
    # that noise follows from; None for the operating system's entropy, without which nothing is private
    noise_seed: int | None = None
    repeatable: bool = True  # whether rounds that are run again with the same noise come to the same sums
    # of who takes part; None where nothing bounds how often, or something else knows. Only in the first process
    participation: ParticipationRecord | None = None
    reservation: Reservation | None = None  # of all that the run may spend; None where nothing is reserved


class PrivateReleases:
    """Ledger and secrets of a run, in the process that uses its folder."""

    def __init__(self, terms: PrivacyTerms, folder: RunFolder, like: Any):
        """Open the ledger; it is begun by `resume`."""
        self._terms, self._folder, self._like = terms, folder, like
        seed = terms.noise_seed
        new_secret = None if seed is None else lambda generation: _repeatable_secret(seed, generation)
        self._releases = Releases(
            folder.directory / PRIVACY_FOLDER, new_secret, terms.repeatable, terms.reservation, fence=folder.fence
        )
        self.ledger = self._releases.ledger
        self._cached: dict[int, Any] = {}

    def resume(self, about: dict[str, Any]) -> tuple[Standing, Any]:
        """Begin, or find out where an interrupted run stands; see `Releases.resume`. Returns where to go on, and what
        the checkpoint holds that this is from; `like` where there is none."""
        found = self._releases.resume(self._terms.plan, self._terms.delta, about, self)
        if self._terms.participation is not None:
            self._terms.participation.settle(found.first)
        state = self._restored(found.checkpoint) if found.checkpoint else self._like
        self._cached = {}
        return found._replace(draw_seed=self.draw_seed()), state

    def draw_seed(self) -> str | None:
        """Give the secret of who takes part, in hex, which must stay as secret as noise; None where noise is not."""
        return self._releases.cohort_secret().hex() if self._terms.noise_seed is None else None

    def latest_round(self) -> int:
        return max(self._folder.checkpoint_rounds(), default=0)

    def digest(self, rounds: int) -> str | None:
        if rounds not in self._folder.checkpoint_rounds():
            return None
        try:
            return parameters_digest(self._restored(rounds))
        except CheckpointError:
            return "not readable"

    def _restored(self, rounds: int) -> Any:
        if rounds not in self._cached:
            self._cached = {rounds: self._folder.restore(rounds, self._like)}
        return self._cached[rounds]

    def see(self, rounds: int) -> None:
        """Enter that the last of so many rounds may be seen by whoever runs the server; when this returns, it may."""
        self._releases.see(rounds)

    def save(self, rounds: int, state: Any, about: dict[str, Any]) -> None:
        """Make a model durable and enter its release; when this returns, it may be shown. Raises DiskError where the
        model cannot be made durable."""
        # Once the ledger has the intent these rounds count as released, whether their checkpoint fits the disk or not.
        self._folder.check_room(state)
        if self._terms.participation is not None:
            self._terms.participation.write()
        self._releases.save(
            rounds,
            parameters_digest(state),
            lambda: self._folder.save(rounds, state, about),
            parameters_digest(getattr(state, "server", state).params),
        )

    def statement(self) -> dict[str, Any]:
        """State for the summary what was spent so far: `noise_multiplier`, and see `Statement.as_json`."""
        stated = state(self.ledger, secret=self._terms.noise_seed is None)
        return {"noise_multiplier": stated.noise_multiplier, **stated.as_json()}

    def spent(self, rounds: int) -> dict[str, Any]:
        """Compute `epsilon` of all releases so far and of one that has seen so many rounds, with `delta`, `unit` and
        `adjacency`; nothing where nothing is promised."""
        *over, (first, _) = self.ledger.generations
        generations = [(start, end) for start, end in [*over, (first, rounds)] if end > start]
        secret = self._terms.noise_seed is None
        total = state_plan(
            self.ledger.plan, self.ledger.delta, self.ledger.about, generations=generations, secret=secret
        ).total
        stated = {} if total is None else total.as_json()
        return {name: stated[name] for name in ("epsilon", "delta", "unit", "adjacency") if name in stated}


class BegunRun(NamedTuple):
    """What a private run that goes on has promised already."""

    plan: PrivacyPlan
    origins: Origins  # of what it began with


def begun_run(folder: RunFolder) -> BegunRun | None:
    """Read what a run that was begun before has promised; all processes call it, and get that of the first. Returns
    None where no private run was begun there."""
    return _begun(gather(together(lambda: _begun_in(folder.directory) if is_first() else None))[0])


def planned_training(command: str, folder: Path, plan: PrivacyPlan, training_data: str | None) -> Phase:
    """Describe all that a run plans.

    Args:
      command: of the run.
      folder: of the run.
      plan: of the run.
      training_data: fingerprint of the training data.
    """
    training = Phase(command, str(folder.absolute()), plan.rounds, "", training_data, "same")
    why = None if plan.noise_cohort is None else plan.noise_cohort.reason
    return training._replace(plan=plan.as_json(), generations=[[0, plan.rounds]], not_private=why)


def begun_in(directory: Path) -> BegunRun | None:
    """Read what the private run that was begun in a folder has promised, as this process finds it; None where none
    was."""
    return _begun(_begun_in(directory))


def _begun(found: tuple[dict[str, Any], dict[str, Any]] | None) -> BegunRun | None:
    if found is None:
        return None
    plan, about = found
    return BegunRun(PrivacyPlan.from_json(plan), Origins.of_record(about))


def _begun_in(directory: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    path = directory / PRIVACY_FOLDER / LEDGER_FILE
    ledger = PrivacyLedger(path) if path.exists() else None
    return (ledger.plan.as_json(), ledger.about) if ledger is not None and ledger.records else None


def _repeatable_secret(seed: int, generation: int) -> bytes:
    """Make a secret that anybody who knows the seed can compute: repeatable, and not private."""
    return hmac.digest(seed.to_bytes(8, "little"), b"noise of generation %d" % generation, "sha256")
