"""What a private experiment does with the sums of its rounds."""

from fedlm.fl_core.privacy.plan import PrivacyPlan
from fedlm.fl_core.privacy.private_plan import plan_aggregation
from fedlm.fl_core.privacy.private_rounds import PrivateAggregation
from fedlm.simulations.engine.cohort_samplers import Cohorts
from fedlm.simulations.experiments.configuration import Experiment


def prepare_aggregation(
    experiment: Experiment, cohorts: Cohorts, delta: float, known: PrivacyPlan | None
) -> PrivateAggregation:
    """Work out what a private experiment does; see `fedlm.fl_core.privacy.private_plan.plan_aggregation`."""
    assert cohorts.participation is not None
    assert experiment.update_clip_norm is not None
    return plan_aggregation(
        experiment,
        experiment.rounds,
        experiment.cohort_size,
        experiment.update_clip_norm,
        cohorts.participation,
        delta,
        known,
    )
