"""What one lying client does to a run whose updates are bounded by what is usual among them."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.rounds.aggregation import WeightedMean, empty_aggregate
from fedlm.fl_core.rounds.norm_bounds import MEDIANS_IN_BOUND, BoundedMean, recent_medians
from fedlm.fl_core.rounds.round_loop import FederatedOptimization, RoundPlan, Rounds
from fedlm.fl_core.rounds.server_optimizers import ServerOptimizerConfig, init_server
from fedlm.fl_core.rounds.settings import TrainingSettings
from fedlm.fl_core.runs.round_rows import round_row
from tests.support.liars import CLIENTS, FIRST, Everyone, PullingClients, score

ROUNDS = 30


def results_of(optimizer, averaging, runner, rounds=range(ROUNDS)):
    config = ServerOptimizerConfig(optimizer)
    rate = 0.5 if optimizer == "fedavg" else 0.1
    optimization = FederatedOptimization(config, rate, 1.0, 0)
    first = init_server(config, FIRST)
    return list(Rounds(first, rounds, runner, Everyone(), optimization=optimization, averaging=averaging))


def loss_of(*arguments):
    return score(results_of(*arguments)[-1].state.params)["heldout_loss"]


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["fedavg", "fedadam"])
@pytest.mark.parametrize("lies", [[0], range(ROUNDS)])
def test_one_liar_does_not_ruin_a_run(optimizer, lies):
    assert loss_of(optimizer, BoundedMean(), PullingClients()) < 0.3
    assert loss_of(optimizer, BoundedMean(), PullingClients(lies)) < 1.0
    assert loss_of(optimizer, WeightedMean(), PullingClients(lies)) > 1.5


def test_the_second_moment_of_fedadam_stays_small():
    moments = results_of("fedadam", BoundedMean(), PullingClients([3]))[-1].state.optimizer
    assert float(jnp.max(moments.nu["x"])) < 1.0


def test_the_first_round_steps_as_far_as_its_median_is_long():
    [first] = results_of("fedavg", BoundedMean(), PullingClients(), range(1))
    moved = float(jnp.linalg.norm(first.state.params["x"]))
    assert moved / 0.5 == pytest.approx(first.mean.metrics["update_norm_bound"], rel=0.1)


def test_the_bound_is_some_medians_of_the_latest_rounds():
    rows = [{"update_norm_p50": median} for median in (None, 1.0, 2.0, 4.0)]
    assert BoundedMean().clip_norm(recent_medians(rows)) == 2.0 * MEDIANS_IN_BOUND
    assert len(recent_medians(rows * 9)) == 8
    # One cohort in which liars were the most, of the first two of a run.
    assert BoundedMean().clip_norm((1.0, 4096.0)) == BoundedMean().clip_norm((4096.0, 1.0)) == MEDIANS_IN_BOUND


def test_rows_tell_what_the_bound_remembers():
    results = results_of("fedavg", BoundedMean(), PullingClients([4]), range(12))
    rows = [round_row(result) for result in results]
    assert recent_medians(rows) == results[-1].mean.state
    # Where nobody reports it stays.
    mean = BoundedMean().next((1.0,), empty_aggregate(FIRST), 0)
    assert (mean.delta, mean.state) == (None, (1.0,))


def test_two_bounds_are_refused():
    with pytest.raises(ConfigurationError, match="update_norm_bound is none, but update_clip_norm"):
        TrainingSettings(update_norm_bound="none", update_clip_norm=1.0)
    with pytest.raises(ConfigurationError, match="update_norm_bound"):
        TrainingSettings(update_norm_bound="loose")


def test_a_client_counts_for_what_it_can_train_on():
    rules = TrainingSettings(client_batch_size=4, client_max_batches=3).aggregation_rules(False)
    capped = TrainingSettings(client_max_examples=3).aggregation_rules(False)
    assert (rules.most_examples, capped.most_examples) == (12, 3)
    plan = RoundPlan(0, np.arange(CLIENTS), 0, 1.0)
    weights = [float(PullingClients(rules=one).run(FIRST, plan).aggregate.weight) for one in (rules, capped)]
    assert weights == [5 * CLIENTS, 3 * CLIENTS]
