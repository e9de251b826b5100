"""What a private experiment does with the sums of its rounds."""

from fl_core.privacy.plan import PrivacyPlan
from fl_core.privacy.private_plan import plan_aggregation
from fl_core.privacy.private_rounds import PrivateAggregation
from simulations.cohort_samplers import Cohorts
from simulations.configuration import Experiment


def prepare_aggregation(
    experiment: Experiment, cohorts: Cohorts, delta: float, known: PrivacyPlan | None
) -> PrivateAggregation:
    """Work out what a private experiment does; see `fl_core.privacy.private_plan.plan_aggregation`."""
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
