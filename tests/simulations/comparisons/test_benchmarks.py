"""Published settings by name: they fit, say where they come from, scale, and are told beside their results."""

from pathlib import Path

import pytest

from fedlm.fl_core.composed_settings import compose
from fedlm.models.registry import create_model
from fedlm.simulations.comparisons.benchmarks import benchmark_presets, benchmarks, scaled
from fedlm.simulations.experiments.configuration import Comparison
from fedlm.simulations.experiments.presets import SIMULATION_PRESETS
from fedlm.simulations.reporting.selection import model_results
from fedlm.simulations.reporting.tables import published_rows
from tests.simulations.reporting.hand_made_results import make_result


def comparison_of(name):
    return compose(Comparison, data=Path("blogs"), **benchmark_presets()[name])


@pytest.mark.parametrize("name", benchmarks())
def test_a_published_setting_fits_and_is_unchanged_as_it_is(name):
    comparison = comparison_of(name)
    assert comparison.experiments()
    assert all(create_model(model, 10_004) for model in comparison.models)
    rows = dict(published_rows(comparison, []))
    assert rows["settings changed"] == "none"
    assert rows["settings read in"] == benchmarks()[name].source


@pytest.mark.parametrize("name", benchmarks())
def test_a_scaled_one_takes_people_as_often_and_claims_no_privacy(name):
    whole = comparison_of(name)
    part = scaled(whole, 0.1)
    assert (part.rounds, part.cohorts.cohort_size) == (whole.rounds // 10, whole.cohorts.cohort_size // 10)
    if whole.privacy.is_private:
        assert part.privacy.noise_cohort_size == (whole.privacy.noise_cohort_size or whole.cohorts.cohort_size)
    if whole.cohorts.min_separation > 1:
        often = [one.rounds / one.cohorts.min_separation for one in (part, whole)]
        assert often[0] == pytest.approx(often[1], rel=0.05)


def test_the_report_has_the_published_score_beside_ours_and_what_is_different():
    comparison = scaled(comparison_of("stackoverflow-fedadam"), 0.1)
    (model,) = comparison.models
    result = make_result(model, client=0.31622777, seed=1, test_in_vocabulary_accuracy=0.2)
    rows = dict(published_rows(comparison, model_results([result])))
    of_target = rows[f"{model}: table 1, validation accuracy"].replace("\N{NO-BREAK SPACE}", " ")
    assert of_target == "20.00 ± \N{EN DASH} % here, 25.20 % published (read: recalled)"
    assert "rounds is 150, published 1500" in rows["settings changed"]
    assert "here blogs. Scores on other text do not compare" in rows["text"]


def test_the_private_preset_of_a_simulation_is_that_of_the_table():
    simulated, compared = SIMULATION_PRESETS["paper-table4"], benchmark_presets()["paper-table4"]
    alike = simulated.keys() & compared.keys()
    assert {name: simulated[name] for name in alike} == {name: compared[name] for name in alike}
    assert {"rounds", "cohort_size", "noise_multiplier", "min_separation"} < alike


def test_the_page_on_simulations_lists_every_one():
    page = (Path(__file__).parents[3] / "docs" / "simulations.md").read_text()
    assert [name for name in benchmarks() if f"`{name}`" not in page] == []
