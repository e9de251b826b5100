import gc
import os
import platform
import subprocess
import sys
from contextlib import suppress

import pytest

from fedlm.commands.cli import main
from fedlm.fl_core.process_memory import frozen_start, keep_freed_memory

PAGES = 100 * 2**20 // os.sysconf("SC_PAGE_SIZE")
ALLOCATING = """
import ctypes, resource, sys, threading
from fedlm.fl_core.process_memory import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
c = ctypes.CDLL(None)
c.malloc.restype, c.free.argtypes, c.memset.argtypes = ctypes.c_void_p, [ctypes.c_void_p], [
    ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def step():
    place = c.malloc(100 * 2**20)
    c.memset(place, 1, 100 * 2**20)
    c.free(place)

def some_steps():
    step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    step()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

some_steps()
thread = threading.Thread(target=some_steps)
thread.start()
thread.join()
"""

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is of the GNU C library")


def mapped_again(how, **environment):
    """Count the pages that steps have mapped again, on the main thread and on another."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", ALLOCATING, how]
    run = subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=True)
    return [int(line) for line in run.stdout.split()]


@pytest.fixture
def no_choices(monkeypatch):
    """An environment that says nothing of how memory is allocated, whatever a test's code sets."""
    for name in [*os.environ, "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX"]:
        if name.startswith(("MALLOC_", "GLIBC_")):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)


def test_what_a_step_frees_is_there_for_the_next_unless_the_environment_says_otherwise():
    assert max(mapped_again("keep")) < PAGES / 10
    assert min(mapped_again("keep", GLIBC_TUNABLES="glibc.malloc.mmap_threshold=65536")) >= 2 * PAGES


def test_processes_that_are_started_keep_theirs(no_choices, monkeypatch):
    # This process's own allocations are left as they are.
    monkeypatch.setattr("fedlm.fl_core.process_memory._set_allocation", lambda **_: None)
    keep_freed_memory()
    told = {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")}
    assert max(mapped_again("give back", **told)) < PAGES / 10


@pytest.mark.parametrize(("command", "keeps"), [("simulate", 1), ("serve", 0)])
def test_commands_that_compute_keep_memory(command, keeps, monkeypatch, capsys):
    called = []
    monkeypatch.setattr("fedlm.commands.cli.keep_freed_memory", lambda: called.append(command))
    with suppress(SystemExit):
        main([command, "--help"])
    assert command in capsys.readouterr().out
    assert len(called) == keeps


def test_what_there_is_at_the_start_is_not_searched_for_garbage_until_the_end():
    with frozen_start():
        assert gc.get_freeze_count() > 1000
    assert gc.get_freeze_count() == 0
