"""Tests that hang fail, say where they hang, and the other tests are run."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
HANGING = """
import asyncio, signal, threading, time
import pytest

def wait_beside():
    time.sleep(60)

def test_that_waits():
    threading.Thread(target=wait_beside, name="beside", daemon=True).start()
    threading.Event().wait()

async def wait_for_ever():
    await asyncio.Event().wait()

def test_that_awaits():
    asyncio.run(wait_for_ever())

def sleep_on():
    time.sleep(60)

def test_that_hears_no_signal():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    sleep_on()

def test_that_ends():
    pass

@pytest.mark.timeout(100)
def test_that_may_take_longer():
    time.sleep(1.5)
"""


def test_a_test_that_hangs_fails_with_its_stacks_and_the_others_run(pytester, monkeypatch):
    """Also one that cannot be interrupted, which ends its process."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest(
        "from tests.support import time_limits\n"
        "time_limits.GRACE_SECONDS = 1.0\n"
        "pytest_plugins = ['tests.support.time_limits']\n"
    )
    pytester.makepyfile(HANGING)
    result = pytester.runpytest_subprocess("-n", "1", "--timeout", "1", "-p", "no:cacheprovider", "-p", "no:randomly")
    result.assert_outcomes(passed=2, failed=3)
    printed = result.stdout.str()
    assert "Failed: Timeout (>1.0s)" in printed
    assert "threading.Event().wait()" in printed, "where the test waits"
    assert "Stack of beside" in printed
    assert "in wait_beside" in printed, "where the other thread waits"
    assert "crashed while running" in printed
    assert "in sleep_on" in result.stderr.str()
