"""Folders with something else in them are refused, and nothing in them is lost."""

import pytest

from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.runs.run_folder import (
    AGGREGATOR,
    COMPARISON,
    COMPARISON_FILE,
    GRID,
    RUN,
    RunFolder,
    refuse_other_contents,
)

OF_SOMEBODY = '{"round": 0, "mine": 1}\nnot json\n'


KINDS = [RUN, COMPARISON, GRID, AGGREGATOR]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["metrics.jsonl", "data/rows.csv"])
def test_a_folder_with_other_files_is_refused_and_left_as_it_is(tmp_path, kind, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(OF_SOMEBODY)
    what = "a run" if name == "metrics.jsonl" and kind != RUN else name.partition("/")[0]
    for _ in range(2):
        with pytest.raises(CheckpointError, match=f"holds '?{what}'?.* give another out"):
            refuse_other_contents(tmp_path, kind)
    assert (tmp_path / name).read_text() == OF_SOMEBODY
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("kind", "begun"),
    [
        (RUN, (".lock", "checkpoints", "error.txt")),
        (COMPARISON, (COMPARISON_FILE,)),
        (GRID, ("cells",)),
        (AGGREGATOR, ("transfers",)),
    ],
)
def test_what_was_begun_goes_on_and_what_a_file_system_puts_there_counts_for_nothing(tmp_path, kind, begun):
    refuse_other_contents(tmp_path / "not there", kind)
    for name in ("lost+found", ".DS_Store", *begun):
        refuse_other_contents(tmp_path, kind)
        (tmp_path / name).touch()
    refuse_other_contents(tmp_path, kind)


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(tmp_path):
    for first in (2, 0):
        with RunFolder(tmp_path) as folder:
            folder.open_log(0)
            assert folder.rows == []
            for number in range(first):
                folder.append({"round": number})
