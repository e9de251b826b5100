"""Every promise of promises.toml is in CONTRIBUTING.md, and the tests that notice changes of the code are there.

That a test fails where the code is changed is seen by `python -m tests.mutants`.
"""

from pathlib import Path

from tests.mutants.mutant import read_killers, read_mutants
from tests.mutants.promises import read_promises

ROOT = Path(__file__).parents[2]
PROMISES = read_promises()


def test_contributing_lists_them():
    _, _, table = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("| promise | test |\n| --- | --- |\n")
    assert [promise.line for promise in PROMISES] == table.partition("\n\n")[0].splitlines()


def test_what_would_break_a_promise_is_there():
    counts = {one.says: (ROOT / one.file).read_text("utf-8").count(one.before) for one in PROMISES}
    assert {says: count for says, count in counts.items() if count != 1} == {}


def test_every_test_that_notices_a_change_is_there():
    assert {mutant.name for mutant in read_mutants()} >= read_killers().keys()
    wanted = {*read_killers().values(), *(promise.test for promise in PROMISES)}
    files = {path: (ROOT / path).read_text("utf-8") for path in {test.partition("::")[0] for test in wanted}}
    missing = [test for test in wanted if f"def {test.rpartition('::')[2]}(" not in files[test.partition("::")[0]]]
    assert missing == []
