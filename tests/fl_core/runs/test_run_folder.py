"""Folders with something else in them are refused, and nothing in them is lost."""

import pytest

from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.runs.run_folder import COMPARISON, COMPARISON_FILE, GRID, GRID_FILE, RunFolder, refuse_other_contents

OF_SOMEBODY = '{"round": 0, "mine": 1}\nnot json\n'


def test_what_others_measured_is_not_written_over(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(OF_SOMEBODY)
    for _ in range(2):
        refused = pytest.raises(CheckpointError, match=r"metrics.jsonl: was not written by a run of fedlm.*another out")
        with refused, RunFolder(tmp_path):
            pass
    assert (tmp_path / "metrics.jsonl").read_text() == OF_SOMEBODY
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("name", ["results.csv", "report.html"])
def test_a_report_of_others_is_not_written_over(tmp_path, name):
    (tmp_path / name).write_text(OF_SOMEBODY)
    with pytest.raises(CheckpointError, match=rf"{name}: was not written by a comparison of fedlm"):
        refuse_other_contents(tmp_path, COMPARISON)
    (tmp_path / COMPARISON_FILE).write_text("{}")
    refuse_other_contents(tmp_path, COMPARISON)


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(tmp_path):
    for first in (2, 0):
        with RunFolder(tmp_path) as folder:
            folder.open_log(0)
            assert folder.rows == []
            for number in range(first):
                folder.append({"round": number})


def test_another_kind_is_refused(tmp_path):
    (tmp_path / GRID_FILE).write_text("{}")
    refuse_other_contents(tmp_path, GRID)
    with pytest.raises(CheckpointError, match="holds a grid of trainings, but a comparison would be written"):
        refuse_other_contents(tmp_path, COMPARISON)
