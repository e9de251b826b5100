"""Cells of comparisons and grids in the tests' own process."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.cells_here import cells_run_here


@pytest.fixture(scope="module")
def cells_here() -> Iterator[None]:
    with cells_run_here():
        yield


@pytest.fixture
def start(tmp_path):
    processes = []

    def start(*words):
        log = (tmp_path / f"log{len(processes)}").open("wb")
        command = [sys.executable, "-m", "fedlm", *map(str, words)]
        environment = os.environ | {"JAX_NUM_CPU_DEVICES": "1"}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        processes.append(process)
        process.log = log.name
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
