"""What makes central training private: its plan, its ledger, and the secret of its noise and batches."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fedlm.fl_core.privacy.accounting import account, calibrate
from fedlm.fl_core.privacy.central_plan import central_plan, enough_for_most_batches
from fedlm.fl_core.privacy.plan import PrivacyPlan
from fedlm.fl_core.privacy.releases import Releases
from fedlm.fl_core.privacy.settings import PRIVACY_FOLDER
from fedlm.fl_core.runs.private_run import StoredStates, repeatable_secrets, statement_of
from fedlm.fl_core.runs.processes import gather, is_first, together
from fedlm.fl_core.runs.run_folder import RunFolder
from fedlm.simulations.pretraining.privacy_units import Units
from fedlm.simulations.pretraining.sampling import Batches, PoissonBatches, TruncatedPoissonBatches
from fedlm.simulations.pretraining.settings import Pretraining


def plan_privacy(settings: Pretraining, units: Units, delta: float) -> PrivacyPlan:
    """Work out the noise of a private run.

    Args:
      settings: of the run.
      units: that are trained on.
      delta: at which epsilon is stated.

    Returns:
      The plan.

    Raises:
      ConfigurationError: the settings do not fit the units, or the target cannot be reached.
    """
    truncated = settings.truncated_batch_size
    if settings.sampling == "truncated_poisson" and truncated is None:
        truncated = enough_for_most_batches(settings.batch_size, units.count)

    def with_noise(noise_multiplier: float) -> PrivacyPlan:
        return central_plan(
            units.count,
            settings.batch_size,
            settings.steps,
            noise_multiplier,
            truncated,
            settings.adjacency,
            f"{units.kind}: {units.unit}, in all steps",
        )

    if settings.noise_multiplier is not None:
        return with_noise(settings.noise_multiplier)
    return calibrate(with_noise, delta, epsilon=settings.epsilon)


class Standing(NamedTuple):
    """Where a private run stands; the same in all processes.

    Attributes:
      checkpoint: steps that the checkpoint to start from has seen, 0 to start afresh.
      next_step: the step that runs next.
      end: one more than the last step that may run.
      secret: of the noise, in hex.
      batch_seed: of the batches.
    """

    checkpoint: int
    next_step: int
    end: int
    secret: str
    batch_seed: int


class PrivateSteps:
    """The ledger of a run's releases, kept by the first process."""

    def __init__(
        self,
        settings: Pretraining,
        plan: PrivacyPlan,
        delta: float,
        folder: RunFolder,
        like: Any,
        check: Callable[[dict[str, Any]], None],
    ):
        """Open the ledger, where there is one.

        Args:
          settings: of the run.
          plan: of its privacy.
          delta: at which epsilon is stated.
          folder: of the run.
          like: arrays, or shapes, of the structure of a checkpoint.
          check: refuses a ledger of another run, by the facts in it.
        """
        self.plan, self._delta, self._folder, self._like, self._check = plan, delta, folder, like, check
        self._secret = settings.noise_seed == "entropy"
        self._new_secret = None if self._secret else repeatable_secrets(settings.seed)
        self._releases: Releases | None = None

    def resume(self, about: dict[str, Any]) -> Standing:
        """Begin, or find out where an interrupted run stands.

        Args:
          about: facts that tell whose ledger it is.

        Returns:
          Where to go on. The secrets travel to the other processes once, over the links that gradients take.

        Raises:
          UserError: ledger, secret and checkpoints do not belong together.
        """
        return Standing(*gather(together(lambda: self._resume(about)))[0])

    def _resume(self, about: dict[str, Any]) -> Standing | None:
        if not is_first():
            return None
        self._releases = Releases(self._folder.directory / PRIVACY_FOLDER, self._new_secret)
        stored = StoredStates(self._folder, self._like)
        if self._releases.ledger.records and not stored.latest_round():
            self._check(self._releases.ledger.about)
        found = self._releases.resume(self.plan, self._delta, about, stored)
        seed = self._releases.cohort_seed()
        return Standing(found.checkpoint, found.next_round, found.end, found.secret.hex(), seed)

    def save(self, steps: int, digest: str, state: Any, about: dict[str, Any]) -> None:
        """Make a model durable and enter its release; when this returns, it may be shown.

        Args:
          steps: that it has seen.
          digest: of the state.
          state: what is saved.
          about: facts that are saved with it.
        """
        if self._releases is not None:
            self._releases.save(steps, digest, lambda: self._folder.save(steps, state, about))

    def statement(self) -> dict[str, Any]:
        """State what was spent so far; see `statement_of`. The same in all processes."""
        own = statement_of(self._releases.ledger.spent(), self._secret) if self._releases is not None else {}
        return gather(own)[0]

    def epsilon(self, steps: int) -> float | None:
        """Compute what will have been spent when a model is released.

        Args:
          steps: that it has seen.

        Returns:
          Epsilon of all releases, that one included; None where noise is not secret.
        """
        if self._releases is None or not self._secret:
            return None
        *over, (first, _) = self._releases.ledger.generations
        generations = [(start, end) for start, end in [*over, (first, steps)] if end > start]
        return account(self.plan, self._delta, generations).epsilon


def private_batches(plan: PrivacyPlan, units: Units, batch_size: int, seed: int) -> Batches:
    """Draw batches as the plan accounts them.

    Args:
      plan: of the run.
      units: that are trained on.
      batch_size: of the run.
      seed: secret.

    Returns:
      The batches.
    """
    most = getattr(plan.participation, "most", None)
    if most is None:
        return PoissonBatches(units, batch_size, seed)
    return TruncatedPoissonBatches(units, batch_size, seed, most)
