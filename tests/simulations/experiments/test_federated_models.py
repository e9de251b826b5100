from pathlib import Path

import pytest

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import ConfigurationError
from fedlm.simulations.comparisons.cell_execution import LocalProcesses
from fedlm.simulations.comparisons.comparison import run_comparison
from fedlm.simulations.experiments.configuration import Comparison, Experiment
from fedlm.simulations.experiments.preparation import prepare

NOWHERE = Path("nowhere")
MESSAGE = "'bert_tiny' has the masked objective.*next token.*fedlm models"


def test_a_simulation_of_a_masked_model_is_refused():
    experiment = compose(
        Experiment, model="bert_tiny", data=NOWHERE, client_learning_rate=0.5, server_learning_rate=0.1
    )
    with pytest.raises(ConfigurationError, match=MESSAGE):
        prepare(experiment)


def test_a_comparison_with_a_masked_model_is_refused_and_writes_nothing(tmp_path):
    comparison = compose(Comparison, models=("cifg_tiny", "bert_tiny"), data=NOWHERE)
    with pytest.raises(ConfigurationError, match=MESSAGE):
        run_comparison(comparison, tmp_path / "out", LocalProcesses(1))
    assert not (tmp_path / "out").exists()
