import pytest

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.rounds.settings import TrainingSettings


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
