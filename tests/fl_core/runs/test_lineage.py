"""Of several copies of a run's folder one goes on."""

import shutil
from pathlib import Path

import pytest

from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.runs.lineage import LINEAGE_FILE, Lineage


class Common:
    """A place that all copies see."""

    def __init__(self):
        self.last = None

    def enter(self, known, name):
        if self.last not in (None, *known):
            return False
        self.last = name
        return True

    def entered(self, name):
        return self.last == name


def go_on(folder, common=None):
    lineage = Lineage(folder, common)
    lineage.go_on()
    return lineage


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    go_on(tmp_path / "run")
    return tmp_path / "run"


def test_a_copy_does_not_go_on_beside_its_original(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    with pytest.raises(CheckpointError, match=f"a copy of {folder}, which is still there"):
        go_on(copy)
    go_on(folder)
    shutil.rmtree(folder)
    go_on(copy)
    go_on(copy)
    # A copy of the copy is one of it.
    with pytest.raises(CheckpointError, match=f"a copy of {copy}"):
        go_on(shutil.copytree(copy, tmp_path / "another"))


def test_a_folder_may_move_and_be_reached_by_another_path(folder, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(folder)
    go_on(tmp_path / "link")
    monkeypatch.chdir(tmp_path)
    go_on(Path("run"))
    moved = folder.rename(tmp_path / "moved")
    # Another run where it was before is no original.
    folder.mkdir()
    go_on(folder)
    go_on(moved)
    assert (moved / LINEAGE_FILE).stat().st_mode & 0o777 == 0o600


def test_where_copies_see_one_place_the_one_that_stayed_behind_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    common = Common()
    go_on(tmp_path / "run", common)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    # As on another machine, where the original is not seen.
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    copy = go_on(tmp_path / "copy", common)
    copy.check()
    (tmp_path / "copy").rename(tmp_path / "hidden")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="has gone on in a copy of this folder, or this is an older copy"):
            go_on(tmp_path / "elsewhere", common)
    copy.check()
    go_on(tmp_path / "hidden", common)
    with pytest.raises(CheckpointError, match="has gone on in a copy"):
        copy.check()


def test_a_crash_before_it_is_entered_does_no_harm_and_an_older_copy_of_the_place_is_no_fork(folder, monkeypatch):
    common = Common()
    go_on(folder, common)
    with monkeypatch.context() as patch:
        patch.setattr(Common, "enter", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            go_on(folder, common)
    go_on(folder, common).check()
    older = common.last
    go_on(folder, common)
    common.last = older
    go_on(folder, common).check()


@pytest.mark.parametrize("content", ["", "[]", '{"run": "x"}', "\udcff"])
def test_a_damaged_file_is_named(folder, content):
    (folder / LINEAGE_FILE).write_text(content, errors="surrogateescape")
    with pytest.raises(CheckpointError, match=r"lineage\.json: cannot be read"):
        go_on(folder)
