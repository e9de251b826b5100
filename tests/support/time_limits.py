"""Every test has a time limit: pytest-timeout fails it and prints the stacks of all threads.

A test that does not end even then, in native code or because it swallows what its time limit raises, ends its process
a minute later, with the stacks of all threads; under pytest-xdist another worker goes on with the other tests.
"""

import faulthandler
import os
from collections.abc import Generator

import pytest

LONG_SECONDS, GRACE_SECONDS = 600.0, 60.0
STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        config.stash[STDERR] = os.dup(2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        is_long = any(item.get_closest_marker(mark) for mark in ("long", "thorough", "reference"))
        if is_long and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_SECONDS))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    seconds = limit_of(item)
    if seconds and not item.config.option.usepdb:
        faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def limit_of(item: pytest.Item) -> float:
    """The seconds that a test may take; 0 is no limit."""
    marker = item.get_closest_marker("timeout")
    if marker:
        return float(marker.args[0])
    option = item.config.getoption("timeout")
    return float(item.config.getini("timeout") or 0) if option is None else float(option)
