"""Cells executed by processes: each once, its rows passed on, whatever happens to others."""

import threading
import time
from collections import Counter

import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.runs.files.run_lock import run_lock
from fedlm.fl_core.worker_processes import cpu_cores
from fedlm.simulations.comparisons.cell_execution import LocalProcesses, await_release, run_cells
from tests.simulations.comparisons.toy_cells import ToyCell


@pytest.mark.long
def test_cells_that_fail_or_are_killed_do_not_end_the_others(tmp_path):
    fates = ("finishes", "fails", "is killed once", "finishes", "is killed")
    cells = [ToyCell(tmp_path / str(number), fate) for number, fate in enumerate(fates)]
    seen = Counter()
    failures = run_cells(cells, LocalProcesses(2), lambda cell, row: seen.update([(cell, row["row"])]))
    assert failures.keys() == {cells[1], cells[4]}
    assert failures[cells[1]] == "ArithmeticError: the toy is broken"
    assert "killed 2 times" in failures[cells[4]]
    assert "ArithmeticError" in (tmp_path / "1" / "error.txt").read_text()
    assert [cell.is_finished() for cell in cells] == [True, False, True, True, False]
    assert set(seen) == {(cell, row) for cell in cells for row in range(3)}


@pytest.mark.long
def test_a_cell_has_as_many_cores_when_it_is_left_alone(tmp_path):
    cells = [ToyCell(tmp_path / str(number)) for number in range(2)]
    run_cells(cells, LocalProcesses(2))
    (tmp_path / "1" / "done").rename(tmp_path / "before")
    run_cells(cells, LocalProcesses(2))
    assert (tmp_path / "1" / "done").read_text() == (tmp_path / "before").read_text()
    assert int((tmp_path / "before").read_text()) == max(len(cpu_cores()) // 2, 1)


@pytest.mark.long
def test_settings_that_do_not_fit_are_the_users_to_mend(tmp_path):
    with pytest.raises(ConfigurationError, match="toys is 0"):
        run_cells([ToyCell(tmp_path, "refuses")], LocalProcesses(1))


def test_a_cell_that_is_begun_again_waits_for_who_may_still_run_it(tmp_path):
    held = threading.Event()

    def hold():
        with run_lock(tmp_path):
            held.set()
            time.sleep(0.3)
            (tmp_path / "let go").touch()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    await_release(ToyCell(tmp_path))
    assert (tmp_path / "let go").exists()
    holder.join()
