"""From the settings of a private run and what its sampler enforces to the plan whose privacy is accounted."""

import dataclasses
from typing import NamedTuple

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.privacy.participation.limits import Participation
from fedlm.fl_core.privacy.private_rounds import AdaptiveClipping, PrivateAggregation
from fedlm.fl_core.privacy.promise.plan import CLIENT, PrivacyPlan, plan_noise
from fedlm.fl_core.privacy.promise.selection.number_of_trials import TrialsLaw
from fedlm.fl_core.privacy.promise.selection.private_selection import check_selected
from fedlm.fl_core.privacy.promise.spending import calibrate_total
from fedlm.fl_core.privacy.settings import PrivacySettings


class PlannedRounds(NamedTuple):
    """What is planned of the rounds of a run, but for their noise."""

    rounds: int
    cohort_size: int
    clip_norm: float  # of updates
    participation: Participation  # what the run's sampler enforces
    delta: float  # at which epsilon is stated
    unit: str = CLIENT  # whose presence is hidden
    noise_cohort_size: int | None = None  # clients that the noise is planned for, where they are not these
    coordinates: int = 0  # numbers of an update; only noise of clients depends on them
    survivors: int | None = None  # clients whose noise suffices; None where settings say so


class Beside(NamedTuple):
    """What counts towards a target beside the sums of a run."""

    origins: Origins = Origins()
    training_data: str | None = None  # fingerprint of the training data; None where nobody knows it
    law: TrialsLaw | None = None  # of the number of trials that the run is to be chosen from; None for no choice


def plan_aggregation(
    settings: PrivacySettings,
    planned: PlannedRounds,
    beside: Beside = Beside(),  # noqa: B008
    known: PrivacyPlan | None = None,
) -> PrivateAggregation:
    """Work out what a private run does, of settings that were checked.

    Args:
      settings: of the run.
      planned: of its rounds.
      beside: what a target includes beside them.
      known: the plan of the run that goes on, whose coefficients and noise need not be chosen again, and whose unit
        stays.

    Raises:
      ConfigurationError: the settings do not fit.
    """
    mechanism, delta = MECHANISMS[settings.privacy], planned.delta
    known = None if known is None else known.as_planned()
    if beside.law is not None:
        check_selected(mechanism)
    if mechanism.distributed and planned.noise_cohort_size is not None:
        raise ConfigurationError(
            f"{setting('noise_cohort_size')} is {planned.noise_cohort_size}, but the noise of {mechanism.name} is made "
            "by the clients of a round; leave it out"
        )
    unit = planned.unit if known is None else known.unit
    options = mechanism.sized(mechanism.options_of(settings), planned)
    with_noise = plan_noise(
        settings.privacy, planned.rounds, planned.participation, options=options, known=known, unit=unit
    )
    if settings.noise_multiplier is not None:
        plan = with_noise(settings.noise_multiplier)
    else:
        plan = calibrate_total(
            with_noise,
            delta,
            epsilon=settings.target_epsilon,
            rho=settings.target_rho,
            training_data=beside.training_data,
            origins=beside.origins,
            known=known,
            law=beside.law,
        )
    if planned.noise_cohort_size is not None:
        plan = plan.as_if_of(planned.cohort_size, planned.noise_cohort_size)
    goal = planned.cohort_size if settings.report_goal is None else settings.report_goal
    adaptive = None if settings.clip_quantile is None else _adaptive_clipping(settings, plan, goal)
    return PrivateAggregation(plan, planned.clip_norm, goal, adaptive, mechanism.restarts_optimizer(settings))


def _adaptive_clipping(settings: PrivacySettings, plan: PrivacyPlan, goal: int) -> AdaptiveClipping:
    """Say how the clip norm moves, with the count's noise scaled as the sum's is."""
    assert settings.clip_quantile is not None
    scale, noise_multiplier = (
        1.0 if plan.noise_cohort is None else plan.noise_cohort.scale,
        plan.as_planned().noise_multiplier,
    )
    count_noise = settings.clip_count_noise
    if count_noise is None:
        count_noise = max(goal / scale / 20, noise_multiplier)
    adaptive = AdaptiveClipping(settings.clip_quantile, settings.clip_quantile_rate, count_noise)
    adaptive.sum_noise(noise_multiplier)
    return dataclasses.replace(adaptive, count_noise=count_noise * scale)
