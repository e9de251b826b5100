"""What a private deployment plans of its rounds."""

import dataclasses
from typing import TYPE_CHECKING

import jax

from fedlm.fl_core.client_algorithms.interface import sent_by_client
from fedlm.fl_core.deployment.server.task import Task
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.exact_sums import number_of_coordinates
from fedlm.fl_core.privacy.mechanisms.skellam import sizes_of

if TYPE_CHECKING:
    # A run without privacy need not load the libraries of privacy.
    from fedlm.fl_core.privacy.private_plan import PlannedRounds
    from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
    from fedlm.fl_core.privacy.settings import PrivacySettings


def planned_privacy(task: Task) -> "tuple[PrivacySettings, PlannedRounds]":
    """Say how a private run's settings of privacy are to be read, and what is planned of its rounds."""
    from fedlm.fl_core.privacy.private_plan import PlannedRounds

    deployment = task.deployment
    privacy, clip_norm = deployment.privacy, deployment.training.update_clip_norm
    assert clip_norm is not None
    assert privacy.delta is not None
    bound = deployment.participation
    if task.place is not None and bound.most(deployment.rounds) < task.place.promised.most(deployment.rounds):
        # An evaluation counts a device once. Its epsilon is by what devices themselves hold.
        bound = task.place.promised
    rounds = (deployment.rounds, deployment.cohort_size, clip_norm, bound, privacy.delta)
    planned = PlannedRounds(*rounds)
    if not privacy.is_distributed:
        return privacy, planned
    like = sent_by_client(deployment.training.algorithm.make(), jax.eval_shape(task.model.init, jax.random.key(0)))
    # Of all that are selected, any number from the fewest reports on may come to a sum.
    most = deployment.round_rules().to_select
    goal = deployment.cohort_size if privacy.report_goal is None else privacy.report_goal
    planned = planned._replace(
        cohort_size=most, coordinates=number_of_coordinates(like), survivors=deployment.fewest_reports
    )
    return dataclasses.replace(privacy, report_goal=goal), planned


def check_sizes(plan: "PrivacyPlan", planned: "PlannedRounds") -> None:
    """Refuse to go on with other numbers of clients than noise was planned for."""
    sizes = sizes_of(plan)
    if (sizes.cohort, sizes.survivors) != (planned.cohort_size, planned.survivors):
        raise ConfigurationError(
            f"{setting('cohort_size')}, {setting('over_selection')} and {setting('minimum_reports')} ask for "
            f"{planned.survivors} to {planned.cohort_size} clients of a round, but the noise of this run is "
            f"planned for {sizes.survivors} to {sizes.cohort}, and stays so; give the settings that it was begun with"
        )
