"""Ledgers of runs that were never run."""

from fedlm.fl_core.privacy.record.ledger import PrivacyLedger, Release


def ledger_of(path, plan, delta, about, releases=None):
    """Write the ledger of a run that released its parameters after so many rounds each, or once, at its end."""
    ledger = PrivacyLedger(path)
    ledger.begin(plan, delta, str(path), about)
    for rounds in (plan.rounds,) if releases is None else releases:
        ledger.intend(Release(rounds, f"digest of {path}", "parameters"))
        ledger.confirm()
    return ledger
