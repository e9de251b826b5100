"""Cells of a comparison or a grid that run in this process, where one of their own would first load JAX."""

from contextlib import contextmanager

import pytest

from fedlm.simulations.comparisons.cell_execution import LocalProcesses, execute_cell


class CellsHere(LocalProcesses):
    """Executes cells without processes."""

    def execute(self, cells, observe, total):
        failures = {cell: execute_cell(cell, lambda row, cell=cell: observe(cell, row)) for cell in cells}
        return {cell: why for cell, why in failures.items() if why is not None}


@contextmanager
def cells_run_here():
    """Let commands that would start workers run their cells in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalProcesses, "execute", CellsHere.execute)
        yield
