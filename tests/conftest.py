"""What every test may use. JAX gets four CPU devices, and no accelerator, before it starts.

All test runs share one folder of compiled programs; `JAX_COMPILATION_CACHE_DIR` names another. Half a program, which a
killed process may leave there, is compiled again.
"""

import os
import resource
import shutil
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "4"
# Tests compile far more than they compute: without costly optimizations, compiling takes half the time.
# `make test-thorough` compiles as a user's runs are.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
# Test processes share a machine's memory: commands that a test runs give back what they free as long as this is there.
os.environ.setdefault("GLIBC_TUNABLES", "")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    programs = Path(__file__).parents[1] / "build" / "tests" / "programs"
    programs.mkdir(parents=True, exist_ok=True)
    if sum(program.stat().st_size for program in programs.iterdir()) > 3 << 30:
        shutil.rmtree(programs, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(programs)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"

import gc
import io
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, chdir, contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import jax
import numpy as np
import psutil
import pytest

from benchmarks.interop.peer_python import REFERENCE, run_in_reference
from tests.support.made_once import made_once
from tests.support.processes import held_port

pytest_plugins = ["tests.support.properties", "tests.support.time_limits"]

MOST_MEMORY = 2 << 30


def pytest_configure() -> None:
    """Look for no garbage among modules and tests, which stay until the end."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    # Tracing makes far more objects that stay than garbage.
    gc.set_threshold(10_000)
    gc.enable()


WORDS = (
    "the a this that one some every no file model server client round value name test list thing reads writes "
    "sends keeps returns gives takes makes finds holds new old small large first last clear local"
).split()


def texts_of_sixty_clients() -> dict[str, list[str]]:
    """Draw one to seven short texts for each client."""
    rng = np.random.default_rng(1)
    return {
        f"client{index}": [" ".join(rng.choice(WORDS, rng.integers(2, 8))) for _ in range(1 + index % 7)]
        for index in range(60)
    }


@pytest.fixture(scope="module", autouse=True)
def _compiled_programs_end_where_they_fill_the_memory() -> Iterator[None]:
    """Without that the programs of all modules pile up to gigabytes in each worker of a test run."""
    yield
    if psutil.Process().memory_info().rss > MOST_MEMORY:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 120 clients with 1 to about 40 sentences of made-up text, and a vocabulary of 120 tokens."""
    return made_once(tmp_path_factory, "small_store", make_small_store)


def make_small_store(out: Path) -> None:
    from fedlm.simulations.data.client_text import ClientText
    from fedlm.simulations.data.importing import ImportSettings, import_text
    from fedlm.simulations.data.sources.in_memory import InMemoryText

    rng = np.random.default_rng(0)
    clients = [
        ClientText(
            f"client{index}",
            [" ".join(rng.choice(WORDS, rng.integers(3, 9))) + "." for _ in range(1 + int(rng.exponential(8)))],
        )
        for index in range(120)
    ]
    import_text("made up", InMemoryText(clients), out, ImportSettings(vocabulary_size=120), workers=1)


@pytest.fixture(scope="session")
def fedlm_here() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `fedlm` in this process, which is quicker than in one of its own; returns what that one would leave."""
    return run_fedlm_here


def run_fedlm_here(*words: object, cwd: Path | str = ".") -> subprocess.CompletedProcess[str]:
    from fedlm.command_line import processes
    from fedlm.commands import evaluate, generate, memorization, recommend
    from fedlm.commands.cli import main

    output, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(errors), chdir(cwd):
        for module in (evaluate, generate, memorization, processes, recommend):
            # The devices of this process are chosen already.
            patch.setattr(module, "set_up_devices", lambda devices, of_cpu=None: None)
        try:
            status = main(["--debug", *map(str, words)])
        except SystemExit as stop:
            status = int(stop.code or 0)
    return subprocess.CompletedProcess(words, status, output.getvalue(), errors.getvalue())


@pytest.fixture(scope="module")
def plain_cohorts() -> Iterator[None]:
    """Let simulations train their cohorts in NumPy; their model must be the unigram model of `plain_runs`."""
    from fedlm.simulations.experiments import simulated_run
    from tests.support.plain_runs import PlainCohorts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulated_run, "_engine", PlainCohorts)
        yield


@pytest.fixture
def full_precision_products() -> Iterator[None]:
    """Hold float32 products to float32 accuracy also where the hardware's default is lower."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture
def compiled_for_speed() -> Iterator[None]:
    """Compile as a user's runs are, where a test computes longer than it compiles."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="session")
def largest_file() -> Callable[[int], AbstractContextManager[None]]:
    """Let no file of this process grow beyond so many bytes, as on a disk that is full."""
    return limit_file_size


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def free_port() -> Iterator[int]:
    with held_port() as port:
        yield port


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not (REFERENCE / ".venv" / "installed").exists():
        for item in items:
            if item.get_closest_marker("reference"):
                item.add_marker(pytest.mark.skip(reason="run `make reference`"))


@pytest.fixture(scope="session")
def reference_python() -> Callable[..., Any]:
    """Run a script of the reference environment; returns what it prints, parsed as JSON."""
    return run_in_reference
