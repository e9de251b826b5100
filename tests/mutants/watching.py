"""A plugin of pytest: which lines each test runs, and what it costs. `python -m tests.mutants cover` uses it.

Lines are kept by coverage.py, under each test's name; what a test costs and how it ends is a line of
`FEDLM_TESTS_SEEN`.
"""

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from coverage import Coverage

OUTCOMES = pytest.StashKey[list[str]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    coverage = Coverage.current()
    if coverage:
        coverage.switch_context(item.nodeid)
    item.stash[OUTCOMES] = []
    before = sum(os.times()[:4])
    try:
        return (yield)
    finally:
        seconds = round(sum(os.times()[:4]) - before, 3)
        seen = {"test": item.nodeid, "seconds": seconds, "outcomes": item.stash[OUTCOMES]}
        with Path(os.environ["FEDLM_TESTS_SEEN"]).open("a") as file:
            file.write(json.dumps(seen) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[OUTCOMES].append(report.outcome)
    return report
