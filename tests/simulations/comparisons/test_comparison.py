import dataclasses
import json
import math
from pathlib import Path

import pytest

from fedlm.fl_core.composed_settings import compose, settings_as_json
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.promise.guarantee import gaussian_epsilon
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger, Release
from fedlm.simulations.comparisons.cell_execution import LocalProcesses
from fedlm.simulations.comparisons.cells import list_cells, read_result
from fedlm.simulations.comparisons.comparison import run_comparison
from fedlm.simulations.experiments.configuration import Comparison

PRIVATE = {"cohort_sampler": "min_separation", "min_separation": 3, "update_clip_norm": 0.5}


def compare(**settings):
    return compose(Comparison, **{"data": Path("corpus"), "models": ("a", "b"), "seeds": (0,)} | PRIVATE | settings)


def privacies(comparison):
    of_a = [one.privacy for one in comparison.experiments() if one.model == "a"]
    return [(privacy.privacy, privacy.target_epsilon) for privacy in of_a]


def test_mechanisms_and_epsilons_are_crossed_and_no_noise_is_run_once():
    comparison = compare(mechanisms=("tree", "blt"), epsilons=(5.0, math.inf, 20.0), seeds=(0, 1))
    assert privacies(comparison)[::2] == [
        *[("tree", 5.0), ("tree", 20.0), ("blt", 5.0), ("blt", 20.0)],
        ("none", None),
    ]
    assert len(comparison.experiments()) == 2 * 5 * 2


def test_runs_without_noise_differ_in_nothing_but_the_noise():
    private, noiseless = compare(privacy="gaussian", epsilons=(5, math.inf), models=("a",), delta=1e-6).experiments()
    exact = dataclasses.replace(noiseless.training.aggregation_rules(False), exact=True)
    assert exact == private.training.aggregation_rules(True)
    assert noiseless.training.averaging().norm == private.training.update_clip_norm
    differing = {
        name for name, value in settings_as_json(private).items() if settings_as_json(noiseless)[name] != value
    }
    assert differing == {"privacy", "target_epsilon", "delta", "weighting"}
    assert (noiseless.training.weighting, noiseless.privacy.delta) == ("uniform", None)
    audited = compare(privacy="gaussian", epsilons=(5, math.inf), delta=1e-6, audit_canaries=2).experiments()
    assert {experiment.privacy.delta for experiment in audited} == {1e-6}
    assert privacies(compare(privacy="tree", epsilons=(5,))) == [("tree", 5)]
    assert privacies(compare(mechanisms=("tree", "blt"), target_epsilon=3.0)) == [("tree", 3.0), ("blt", 3.0)]
    assert privacies(compare(mechanisms=("tree", "blt"), epsilons=(math.inf,))) == [("none", None)]


def test_a_setting_of_one_mechanism_goes_to_its_runs_alone():
    tree, blt, banded = compare(
        mechanisms=("tree", "blt", "banded"), epsilons=(5,), tree_restart_every=10, bands=2, models=("a",)
    ).experiments()
    assert tuple(one.privacy.tree_restart_every for one in (tree, blt, banded)) == (10, None, None)
    assert tuple(one.privacy.bands for one in (tree, blt, banded)) == (None, None, 2)


def test_folders_of_cells_are_unique_and_those_of_one_privacy_are_where_they_were():
    cells = list_cells(compare(mechanisms=("tree", "blt"), epsilons=(5, 0.25, math.inf)), Path("out"))
    folders = [str(cell.directory) for cell in cells]
    assert len(set(folders)) == len(folders) == 10
    assert folders[1] == "out/cells/a/tree_epsilon-0.25/client-0.5_server-0.01/seed-0"
    assert folders[4] == "out/cells/a/no_noise/client-0.5_server-0.01/seed-0"
    (only,) = list_cells(compare(privacy="tree", target_epsilon=5, models=("a",)), Path("out"))
    assert str(only.directory) == "out/cells/a/client-0.5_server-0.01/seed-0"
    first, second = list_cells(compare(mechanisms=("tree", "blt"), noise_multiplier=2, models=("a",)), Path("out"))
    assert (first.directory.parts[3], second.directory.parts[3]) == ("tree", "blt")


def test_the_record_of_settings_is_json_that_others_read_too():
    record = json.dumps(settings_as_json(compare(privacy="tree", epsilons=(5, math.inf))), allow_nan=False)
    assert json.loads(record)["epsilons"] == [5, "inf"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilons": (5,)}, "epsilons is .5,., but privacy is none; give privacy or mechanisms"),
        ({"mechanisms": ("none", "tree"), "epsilons": (5,)}, "mechanisms has 'none'.*epsilons with inf"),
        ({"mechanisms": ("tree",), "privacy": "blt", "epsilons": (5,)}, "privacy is blt, which does nothing beside"),
        ({"mechanisms": ("tree", "tree"), "epsilons": (5,)}, "mechanisms is .*each value only once"),
        ({"privacy": "tree", "epsilons": (5, 5)}, "epsilons is .*each value only once"),
        ({"privacy": "tree", "epsilons": (0,)}, "epsilons has 0.0, but each must be positive"),
        ({"privacy": "tree", "epsilons": (5,), "target_epsilon": 3}, "target_epsilon is 3, which does nothing beside"),
        ({"mechanisms": ("tree", "blt")}, "exactly one of"),
        (
            {"privacy": "banded", "epsilons": (math.inf,), "bands": 3},
            "bands is 3, which does nothing where epsilons is inf alone",
        ),
        (
            {"mechanisms": ("blt", "gaussian"), "epsilons": (5,), "tree_complete": True},
            "with the mechanisms blt, gau",
        ),
        ({"mechanisms": ("tree",), "epsilons": (5,), "bands": 2}, "bands is 2, which does nothing with the mechanisms"),
        (
            {"privacy": "gaussian", "epsilons": (5, math.inf), "clip_quantile": 0.5},
            "clip_quantile is 0.5, but eps",
        ),
        (
            {"mechanisms": ("gaussian", "blt"), "epsilons": (5,), "cohort_sampler": "poisson", "min_separation": 1},
            "privacy is blt and cohort_sampler is poisson",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_with_what_to_do(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        compare(**settings)


def test_a_comparison_with_a_masked_model_is_refused_and_writes_nothing(tmp_path):
    comparison = compose(Comparison, models=("cifg_tiny", "bert_tiny"), data=Path("nowhere"))
    with pytest.raises(ConfigurationError, match=r"'bert_tiny' has the masked objective.*next token.*fedlm models"):
        run_comparison(comparison, tmp_path / "out", LocalProcesses(1))
    assert not (tmp_path / "out").exists()


def test_a_cell_says_of_its_privacy_what_its_ledger_says(tmp_path):
    cell = list_cells(compare(privacy="gaussian", noise_multiplier=4.0, models=("a",)), tmp_path)[0]
    cell.directory.mkdir(parents=True)
    lie = {"status": "finished", "privacy": "(epsilon = 0.1 ...", "privacy_guarantee": {"epsilon": 0.1}}
    (cell.directory / "summary.json").write_text(json.dumps(lie))
    without = read_result(cell).summary
    assert (without["privacy"], without["privacy_guarantee"]) == ("NOT PRIVATE: its ledger is missing", None)
    (cell.directory / "privacy").mkdir()
    ledger = PrivacyLedger(cell.directory / "privacy" / "ledger.jsonl")
    ledger.begin(PrivacyPlan("gaussian", 4, 4.0, BoundedParticipation(None, 1)), 1e-5, "commitment", {})
    ledger.intend(Release(4, "digest"))
    found = read_result(cell).summary
    assert found["status"] == "finished"
    assert found["privacy_guarantee"]["epsilon"] == gaussian_epsilon(4.0, 2.0, 1e-5)
    assert found["noise_multiplier"] == 4.0


def test_a_private_cell_knows_with_how_many_it_is_compared():
    cells = list_cells(compare(privacy="tree", epsilons=(5.0, math.inf), seeds=(0, 1, 2)), Path("out"))
    assert [cell.tuning for cell in cells if cell.experiment.privacy.is_private] == [{"runs": 6}] * 6
    assert [cell.tuning for cell in cells if not cell.experiment.privacy.is_private] == [None] * 6
    (only,) = list_cells(compare(privacy="tree", target_epsilon=5, models=("a",)), Path("out"))
    assert only.tuning is None
