"""What is stated of first parameters by runs of a comparison, and by runs on data in memory."""

import numpy as np
import pytest

import fedlm
from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.promise.guarantee import gaussian_epsilon
from fedlm.simulations.comparisons.cell_execution import LocalProcesses
from fedlm.simulations.comparisons.cells import list_cells
from fedlm.simulations.comparisons.comparison import run_comparison
from fedlm.simulations.experiments.configuration import Comparison
from fedlm.simulations.experiments.experiment import run_experiment
from fedlm.simulations.experiments.tuning import ComparedWith
from fedlm.simulations.reporting.run_privacy import run_privacies
from tests.support.plain_runs import MODEL, NO_PRIVACY, PRIVATE, run

pytestmark = pytest.mark.usefixtures("plain_cohorts")
TWICE = gaussian_epsilon(4.0, np.sqrt(2), 1e-5)


@pytest.mark.parametrize("private", [True, False])
def test_each_run_of_a_comparison_has_the_ancestry_of_its_first_parameters(small_store, tmp_path, private):
    settings = PRIVATE | {"data": small_store}
    run(settings, tmp_path / "parent", **{} if private else NO_PRIVACY)
    del settings["model"]
    settings |= {"models": (MODEL,), "client_learning_rates": (0.1, 0.5), "server_learning_rates": (0.01,)}
    settings |= {"seeds": (0,), "init_from": tmp_path / "parent"}
    comparison, out = compose(Comparison, **settings), tmp_path / "out"
    for cell in list_cells(comparison, out):
        run_experiment(cell.experiment, cell.directory, brought=[ComparedWith(cell.tuning)])
    results = run_comparison(comparison, out, LocalProcesses(1))
    assert len(results) == 2
    for result in results:
        said, guarantee = result.summary["privacy"], result.summary["privacy_guarantee"]
        assert [phase["people"] for phase in result.summary["ancestry"]] == ["same"]
        if private:
            assert guarantee["epsilon"] == pytest.approx(TWICE, rel=0.01)
            assert "composed with 1 releases" in said
            assert "by looking at the others among the 2 or more" in said
        else:
            assert guarantee is None
            assert said.startswith("NOT PRIVATE: the first parameters come from")
    (found,) = run_privacies(results).values()
    assert (found.private, found.epsilon) == (private, guarantee and guarantee["epsilon"])
    for word in ("public", "disjoint"):
        (cell, *_) = list_cells(compose(Comparison, **settings, initial_data=word), tmp_path / word)
        with pytest.raises(ConfigurationError, match="the very training clients of this run"):
            run_experiment(cell.experiment, cell.directory, brought=[ComparedWith(cell.tuning)])


def simulate(data, out, **changes):
    return fedlm.simulate(data=data, out=out, **PRIVATE | changes).summary


def test_data_in_memory_are_known_by_their_text(texts, data, tmp_path):
    again = fedlm.DataInMemory.from_texts(texts, vocabulary_size=80)
    simulate(data, tmp_path / "open", **NO_PRIVACY)
    simulate(data, tmp_path / "private")
    open_child = simulate(again, tmp_path / "of open", init_from=tmp_path / "open")
    assert open_child["privacy_guarantee"] is None
    assert "trained without privacy" in open_child["privacy"]
    child = simulate(again, tmp_path / "of private", init_from=tmp_path / "private")
    assert child["privacy_guarantee"]["epsilon"] == pytest.approx(TWICE, rel=0.01)
    assert child["ancestry"][0]["training_data_sha256"] == again.training_data(check=True)
    for parent in ("open", "private"):
        with pytest.raises(ConfigurationError, match="disjoint"):
            simulate(again, tmp_path / "refused", init_from=tmp_path / parent, initial_data="disjoint")
