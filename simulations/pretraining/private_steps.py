"""What makes central training private: its plan, and batches that are drawn as the plan accounts them."""

import functools

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.participation.limits import Participation
from fedlm.fl_core.privacy.participation.sampling import (
    BallsInBinsParticipation,
    ExamplesParticipation,
    MinSeparationParticipation,
    PoissonParticipation,
)
from fedlm.fl_core.privacy.private_plan import Beside
from fedlm.fl_core.privacy.promise.band_choice import best_bands
from fedlm.fl_core.privacy.promise.central_plan import central_plan, enough_for_most_batches, most_bands
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.promise.spending import calibrate_total
from fedlm.simulations.pretraining.batches.cyclic_sampling import CyclicPoissonBatches
from fedlm.simulations.pretraining.batches.min_separation import MinSeparationBatches
from fedlm.simulations.pretraining.batches.privacy_units import Units
from fedlm.simulations.pretraining.batches.sampling import Batches, PoissonBatches, TruncatedPoissonBatches
from fedlm.simulations.pretraining.batches.sequences_of_users import SequencesOfUsers
from fedlm.simulations.pretraining.settings import Pretraining


def plan_privacy(
    settings: Pretraining,
    units: Units,
    delta: float,
    beside: Beside = Beside(),  # noqa: B008
    *,
    known: PrivacyPlan | None = None,
) -> PrivacyPlan:
    """Work out the noise of a private run, with which it reaches its target together with what counts beside its steps;
    `known` is the plan of the run that goes on. Raises ConfigurationError where the settings do not fit the units, or
    the target cannot be reached."""
    truncated = settings.truncated_batch_size
    if settings.sampling == "truncated_poisson" and truncated is None:
        chosen_before = getattr(known and known.participation, "most", None)
        truncated = chosen_before or enough_for_most_batches(settings.batch_size)

    def with_noise(noise_multiplier: float, bands: int | None) -> PrivacyPlan:
        return central_plan(
            units.count,
            settings.batch_size,
            settings.steps,
            noise_multiplier,
            truncated_batch_size=truncated,
            in_bins=settings.sampling == "balls_in_bins",
            min_separation=settings.sampling == "min_separation",
            adjacency=settings.adjacency,
            unit=f"{units.noun}: {units.unit}, in all steps",
            bands=bands,
            coefficients=known.coefficients if known is not None and len(known.coefficients) == bands else None,
            examples_per_user=units.most_of_user if isinstance(units, SequencesOfUsers) else None,
        )

    def planned(bands: int | None) -> PrivacyPlan:
        if settings.given_noise_multiplier is not None:
            return with_noise(settings.given_noise_multiplier, bands)
        noise = functools.partial(with_noise, bands=bands)
        return calibrate_total(
            noise,
            delta,
            epsilon=settings.epsilon,
            rho=None,
            training_data=beside.training_data,
            origins=beside.origins,
            known=known,
        )

    if settings.mechanism == "gaussian" or settings.bands is not None:
        return planned(settings.bands)
    if known is not None and known.mechanism == settings.mechanism:
        return planned(len(known.coefficients))
    if settings.sampling == "min_separation":
        raise ConfigurationError(f"give {setting('bands')}: no number is chosen for sampling with a min-separation")
    return best_bands(planned, most_bands(units.count, settings.batch_size, settings.steps))


def private_batches(plan: PrivacyPlan, units: Units, batch_size: int, seed: int | bytes) -> Batches:
    """Draw batches as the plan accounts them."""
    participation = plan.participation
    if isinstance(participation, ExamplesParticipation) or isinstance(units, SequencesOfUsers):
        return _batches_of_examples(participation, units, PoissonBatches(units, batch_size, seed))
    if isinstance(participation, BallsInBinsParticipation):
        return CyclicPoissonBatches(units, batch_size, seed, 1.0, participation.bins)
    if isinstance(participation, MinSeparationParticipation):
        return MinSeparationBatches(
            units, batch_size, seed, participation.sampling_probability, participation.min_separation
        )
    most = getattr(participation, "most", None)
    assert isinstance(participation, PoissonParticipation)
    if plan.mechanism == "banded":
        return CyclicPoissonBatches(
            units,
            batch_size,
            seed,
            participation.sampling_probability,
            participation.cycle,
            equal_parts=plan.adjacency == "zero_out",
            truncated_batch_size=most,
        )
    if most is None:
        return PoissonBatches(units, batch_size, seed)
    return TruncatedPoissonBatches(units, batch_size, seed, most)


def _batches_of_examples(participation: Participation, units: Units, batches: PoissonBatches) -> Batches:
    """Refuse what the plan does not account."""
    promised = (
        isinstance(participation, ExamplesParticipation)
        and isinstance(units, SequencesOfUsers)
        and units.most_of_user <= participation.examples
        and batches.probability <= participation.sampling_probability
    )
    if not promised:
        raise ValueError(
            f"batches of {type(units).__name__} with probability {batches.probability} under a plan of {participation}"
        )
    return batches
