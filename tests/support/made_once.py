"""Folders that are made once in a test run, by the first of its workers that asks for them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Give the folder of this name that all workers of a test run share; `make` fills it, where it is not there yet.

    No test may write into it.
    """
    folder = _shared_by_workers(factory) / name
    made = folder.with_name(f"{name}.made")
    with FileLock(folder.with_name(f"{name}.lock")):
        if not made.exists():
            # A worker that died here, or failed, left half of it.
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            made.touch()
    return folder


def _shared_by_workers(factory: pytest.TempPathFactory) -> Path:
    base = factory.getbasetemp()
    return base.parent if base.name.startswith("popen-") else base
