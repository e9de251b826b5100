"""Whoever was taken over from makes no secret of noise, and reserves and gives back nothing."""

import contextlib

import pytest

from fedlm.fl_core.deployment.security.audit_log import AuditLog
from fedlm.fl_core.deployment.state.state import NotLeadingError
from fedlm.fl_core.privacy.record.releases import Releases
from fedlm.fl_core.runs.capabilities.data_budget import DataBudget
from fedlm.fl_core.runs.run_folder import RunFolder
from tests.fl_core.privacy.record.test_ledger import DELTA, PLAN, Stored, begin


@contextlib.contextmanager
def lost():
    """A fence of a process that was taken over from."""
    raise NotLeadingError("another leads")
    yield


def test_who_was_taken_over_from_leaves_the_first_secret_as_it_is(tmp_path):
    frozen = Releases(tmp_path / "privacy", fence=lost)
    begin(tmp_path)
    frozen_secret = (tmp_path / "privacy/noise-secret-0").read_bytes()
    with pytest.raises(NotLeadingError):
        frozen.resume(PLAN, DELTA, {"whose": "ours"}, Stored())
    assert (tmp_path / "privacy/noise-secret-0").read_bytes() == frozen_secret


def test_who_was_taken_over_from_leaves_a_later_secret_as_it_is(tmp_path):
    begin(tmp_path)[0].see(5)
    with pytest.raises(NotLeadingError):
        Releases(tmp_path / "privacy", fence=lost).resume(PLAN, DELTA, {"whose": "ours"}, Stored())
    assert not (tmp_path / "privacy/noise-secret-1").exists()


def test_who_was_taken_over_from_adds_to_no_record_beside_the_ledger(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl", lost)
    with pytest.raises(NotLeadingError):
        log.record(call="run.stop")
    log.close()
    assert (tmp_path / "audit.jsonl").read_bytes() == b""
    with RunFolder(tmp_path / "run", fence=lost) as folder, pytest.raises(NotLeadingError):
        folder.open_log(0, 0)
    assert not (tmp_path / "run/metrics.jsonl").exists()


def test_who_was_taken_over_from_adds_nothing_to_a_budget(tmp_path):
    budget = DataBudget.set(tmp_path, 1.0, 1e-5)
    budget.fence = lost
    with pytest.raises(NotLeadingError):
        budget.close()
    assert not budget.closed
