"""The library of accounting says nothing of what is ours to know."""

import logging
import re
from pathlib import Path

from absl import logging as absl_logging

import fedlm
from fedlm.fl_core.privacy.accounting.accounting_library import accounting_library


def test_its_warnings_are_not_shown_and_those_of_others_are(caplog):
    fractional = accounting_library().rdp.rdp_privacy_accountant._compute_log_a_frac
    # Whether absl's logger passes records on depends on its verbosity; the handler sees them either way.
    logging.getLogger("absl").addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.WARNING, logger="absl"):  # a command in this process may have silenced all
            assert fractional(0.5, 1, 1.1) == float("inf")  # of which it warns
            assert not caplog.records
            absl_logging.warning("of another")
        assert {record.message for record in caplog.records} == {"of another"}
    finally:
        logging.getLogger("absl").removeHandler(caplog.handler)


def test_it_is_loaded_in_one_place():
    packages = Path(fedlm.__file__).parent
    loading = re.compile(r"^    import dp_accounting|^import dp_accounting|^from dp_accounting", re.MULTILINE)
    found = {
        path.name
        for package in ("fl_core", "simulations", "clients", "commands", "models")
        for path in (packages / package).resolve().rglob("*.py")
        if loading.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"accounting_library.py"}
