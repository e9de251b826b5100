"""Findings hold in a world that was made so, and are not reached where nothing tells."""

import dataclasses

import numpy as np
import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.simulations.laws.figures.figure import Evidence
from fedlm.simulations.laws.figures.search import TrainingSearch
from fedlm.simulations.laws.figures.table2 import published_table, saturating_table
from fedlm.simulations.laws.planning.central_planner import Budget
from fedlm.simulations.laws.report import paper_findings
from fedlm.simulations.laws.report.paper_findings import FINDINGS, judge_findings, physical_batches
from tests.support.synthetic_laws import FEW, WORLD, surface_of


@pytest.fixture(scope="module")
def findings(evidence):
    return {finding.number: finding for finding in judge_findings(evidence)}


@pytest.mark.long
def test_every_finding_has_a_verdict_a_reason_and_numbers(findings):
    assert list(findings) == list(FINDINGS) == list(range(1, 11))
    for finding in findings.values():
        assert finding.why
        assert finding.claim.endswith(").")
        if finding.verdict != "not reached":
            assert finding.numbers


def test_what_was_made_so_holds(findings):
    assert {number: findings[number].verdict for number in (1, 3, 6)} == dict.fromkeys((1, 3, 6), "holds")
    assert findings[8].verdict == "not reached"


@pytest.mark.long
def test_nothing_is_reached_where_the_grid_has_one_model_and_much_noise(evidence):
    surface = surface_of({"only": 1e6}, steps=[1000.0, 2000.0])
    cut = {name: getattr(surface, name)[..., -2:] for name in ("noise_batch_ratios", "loss", "learning_rates", "draws")}
    search = TrainingSearch(dataclasses.replace(surface, **cut), 4)
    found = {number: FINDINGS[number][1](search, Evidence(search)).verdict for number in (1, 2, 3, 4, 5, 7, 8, 9)}
    assert found == dict.fromkeys(found, "not reached")


def test_doubling_batch_and_examples_together_halves_the_ratio_exactly():
    gains = paper_findings.returns_of_doubling()
    assert np.allclose(gains["examples and batch"], 1.0)
    assert max(gains["batch"][-2:]) < 0.1


def test_larger_physical_batches_are_judged_by_the_sign_of_their_effect():
    few = dataclasses.replace(FEW, parameters=(1e5,)).measure(WORLD)
    worse = {0.0: -0.1, 2**-14: 0.0, 2**-11: 0.1, 2**-8: 0.2}
    more = dataclasses.replace(
        few,
        batch_size=few.batch_size * 4,
        loss=few.loss + np.array([worse[ratio] for ratio in few.noise_batch_ratio]),
    )
    both = few.joined([more])
    assert physical_batches(both).verdict == "holds"
    assert physical_batches(dataclasses.replace(both, loss=-both.loss + 40)).verdict == "does not hold"
    assert physical_batches(few).verdict == "not reached"


def test_a_saturating_row_is_the_first_compute_within_a_percent_of_the_best(evidence):
    search = evidence.search
    (row,) = saturating_table(search, (1e8,), (4.0,)).rows()
    losses = [
        search.best(Budget(row["examples"], row["epsilon"], row["delta"], compute))["loss"]
        for compute in search.computes
    ]
    first = search.computes[int(np.argmax(np.array(losses) <= 1.01 * np.nanmin(losses)))]
    assert row["compute"] == first
    assert len(saturating_table(search, (100.0,), (1e-3,))) == 0


def test_a_table_of_examples_that_were_not_published_is_refused():
    with pytest.raises(ConfigurationError, match="the published table has none"):
        published_table((3e5,))
