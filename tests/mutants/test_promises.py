"""Every promise of promises.toml is in CONTRIBUTING.md, its test is there, and so is the code that would break it.

That a test fails where its promise is broken is seen by `python -m tests.mutants promises`.
"""

from pathlib import Path

import pytest

from tests.mutants.promises import read_promises

ROOT = Path(__file__).parents[2]
PROMISES = {promise.says: promise for promise in read_promises()}


def test_contributing_lists_them():
    _, _, table = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("| promise | test |\n| --- | --- |\n")
    assert [promise.line for promise in PROMISES.values()] == table.partition("\n\n")[0].splitlines()


@pytest.mark.parametrize("says", PROMISES)
def test_what_would_break_it_is_there(says):
    promise = PROMISES[says]
    path, _, name = promise.test.partition("::")
    assert f"\ndef {name}(" in (ROOT / path).read_text("utf-8")
    assert (ROOT / promise.file).read_text("utf-8").count(promise.before) == 1
