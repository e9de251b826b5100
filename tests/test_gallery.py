"""The gallery of finished runs has of each kind what it says."""

import json

import pytest

from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.statement import state
from tests.support.gallery import KINDS


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "comparison"])
def test_a_run_of_each_kind_has_ended(finished_run, kind):
    run = finished_run(kind)
    summary = json.loads((run / "summary.json").read_text())
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
    if kind in ("private", "central", "deployed"):
        assert state(PrivacyLedger(run / "privacy" / "ledger.jsonl")).own.epsilon > 0
        assert summary["privacy"].startswith("(epsilon = ")
    else:
        assert summary["privacy"].startswith("NOT PRIVATE")
    assert ("trained_parameters" in summary and summary["trained_parameters"] < summary["parameters"]) == (
        kind == "adapters"
    )


def test_a_comparison_of_two_models_has_ended(finished_run):
    run = finished_run("comparison")
    assert (run / "report.html").exists()
    assert len(list(run.glob("cells/*/*/*/summary.json"))) == 2


def test_what_a_test_does_to_its_copy_changes_no_other(finished_run, copied_run, tmp_path):
    (finished_run("simulated") / "summary.json").unlink()
    assert (copied_run("simulated", tmp_path / "other") / "summary.json").exists()
