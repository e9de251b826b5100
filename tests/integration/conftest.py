"""Cells of comparisons and grids in the tests' own process."""

from collections.abc import Iterator

import pytest

from tests.support.cells_here import cells_run_here


@pytest.fixture(scope="module")
def cells_here() -> Iterator[None]:
    with cells_run_here():
        yield
