"""From the settings of a private run and what its sampler enforces to the plan whose privacy is accounted."""

from collections.abc import Sequence

from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.origins.ancestry import Phase
from fedlm.fl_core.privacy.origins.relevance_origin import RelevanceOrigin
from fedlm.fl_core.privacy.origins.vocabulary_origin import UNKNOWN, VocabularyOrigin
from fedlm.fl_core.privacy.participation import Participation
from fedlm.fl_core.privacy.private_rounds import AdaptiveClipping, PrivateAggregation
from fedlm.fl_core.privacy.promise.number_of_trials import TrialsLaw
from fedlm.fl_core.privacy.promise.plan import CLIENT, PrivacyPlan, plan_noise
from fedlm.fl_core.privacy.promise.spending import calibrate_total
from fedlm.fl_core.privacy.settings import PrivacySettings


def plan_aggregation(
    settings: PrivacySettings,
    rounds: int,
    cohort_size: int,
    clip_norm: float,
    participation: Participation,
    delta: float,
    known: PrivacyPlan | None = None,
    training_data: str | None = None,
    ancestry: Sequence[Phase] = (),
    vocabulary: VocabularyOrigin = UNKNOWN,
    law: TrialsLaw | None = None,
    unit: str = CLIENT,
    relevance: RelevanceOrigin | None = None,
) -> PrivateAggregation:
    """Work out what a private run does, of settings that were checked.

    Args:
      settings: of the run.
      rounds: of the run.
      cohort_size: of a round.
      clip_norm: of updates.
      participation: what the run's sampler enforces.
      delta: at which epsilon is stated.
      known: the plan of the run that goes on, whose coefficients and noise need not be chosen again.
      training_data: fingerprint of the training data; None where nobody knows it.
      ancestry: what the first parameters went through, whose spending a target includes.
      vocabulary: where it comes from; what it has spent a target includes too.
      law: of the number of trials that the run is to be chosen from, which a target includes too; None for no choice.
      unit: whose presence is hidden; that of `known` where there is one.
      relevance: where the relevances come from that attention is corrected by, whose spending a target includes too;
        None without re-attention.

    Raises:
      ConfigurationError: the settings do not fit.
    """
    mechanism = MECHANISMS[settings.privacy]
    unit = unit if known is None else known.unit
    with_noise = plan_noise(settings.privacy, rounds, participation, mechanism.options_of(settings), known, unit)
    if settings.noise_multiplier is not None:
        plan = with_noise(settings.noise_multiplier)
    else:
        target = settings.target_epsilon, settings.target_rho
        plan = calibrate_total(with_noise, delta, *target, training_data, ancestry, known, vocabulary, law, relevance)
    goal = cohort_size if settings.report_goal is None else settings.report_goal
    adaptive = None
    if settings.clip_quantile is not None:
        count_noise = settings.clip_count_noise
        if count_noise is None:
            count_noise = max(goal / 20, plan.noise_multiplier)
        adaptive = AdaptiveClipping(settings.clip_quantile, settings.clip_quantile_rate, count_noise)
    return PrivateAggregation(plan, clip_norm, goal, adaptive, mechanism.restarts_optimizer(settings))
