from pathlib import Path

import pytest

from fedlm.fl_core.composed_settings import compose, compose_without_idle
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.rounds.settings import TrainingSettings
from fedlm.simulations.experiments.configuration import Experiment


@pytest.mark.parametrize(
    ("idle", "useful"),
    [
        ({"server_momentum": 0.5}, {"server_optimizer": "fedavgm"}),
        ({"server_beta1": 0.5, "server_optimizer": "fedavgm"}, {"server_optimizer": "fedyogi"}),
        ({"server_epsilon": 0.1, "server_optimizer": "fedavg"}, {"server_optimizer": "fedadagrad"}),
        ({"client_cap_order": "cap_then_shuffle"}, {"client_max_examples": 5}),
    ],
)
def test_a_setting_that_does_nothing_beside_another_is_refused(idle, useful):
    name = next(iter(idle))
    with pytest.raises(ConfigurationError, match=f"{name} is .*, which does nothing .*leave {name} out"):
        compose(TrainingSettings, **idle)
    assert getattr(compose(TrainingSettings, **idle | useful), name) == idle[name]


def test_defaults_of_a_record_in_json_are_no_idle_values():
    given = {"data": Path("x"), "model": "cifg_tiny"}
    assert compose(Experiment, **given, lora_matrices=[]) == compose(Experiment, **given)


def test_idle_values_of_a_run_that_was_begun_with_them_become_the_defaults():
    written = {"server_optimizer": "fedavg", "server_momentum": 0.5}
    with pytest.raises(ConfigurationError, match=r"server_momentum is 0\.5, which does nothing"):
        compose(TrainingSettings, **written)
    assert compose_without_idle(TrainingSettings, written, written) == compose(
        TrainingSettings, server_optimizer="fedavg"
    )
