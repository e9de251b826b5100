"""Changes of the code are found where they show, and nowhere else: of a number, a sentence, a byte of a message."""

import re
import shutil
import subprocess
import sys

import pytest

from tests.golden.sides import ROOT

pytestmark = pytest.mark.long

COMMIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "All"]
AGGREGATION = ("fl_core/rounds/aggregation.py", "leaf / weight", "leaf / (weight * 1.001)")
WORDS = ("fl_core/privacy/origins/vocabulary_origin.py", "COVERED: {", "COVERED; {")
VERSION = ("clients/fedlm_client/fedlm_client/client.py", 'VERSION = "0.1.0"', 'VERSION = "0.2"')
OF_RUNS = {"python": r"0\.stdout|parameters\.npz", "text": r"[01]\.stdout|data/store\.json .*state"}
OF_MESSAGES = {"deployment": r"wire|.*state\.db .*version"}


def copy_code(folder):
    """The code as it is here, with what is not committed, as a repository of its own."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (path := ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, folder / name, follow_symlinks=False)
    for words in (["git", "init", "--quiet"], ["git", "add", "--all", "--force"], COMMIT):
        subprocess.run(words, cwd=folder, check=True)


@pytest.mark.parametrize(
    ("changes", "shows"),
    [((AGGREGATION, WORDS), OF_RUNS), pytest.param((VERSION,), OF_MESSAGES, marks=pytest.mark.thorough)],
)
def test_changes_are_reported_where_they_show(changes, shows, tmp_path):
    copy_code(tmp_path)
    for file, before, after in changes:
        code = (tmp_path / file).read_text()
        assert code.count(before) == 1
        (tmp_path / file).write_text(code.replace(before, after))
    words = [sys.executable, "-m", "tests.golden", "--against", "HEAD", "--cases", *shows, "keys"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    output = done.stdout + done.stderr
    assert done.returncode == 1, output
    assert re.search(r"^keys +equal", output, re.M), output
    for case, where in shows.items():
        (found,) = re.findall(rf"^{case} +\d+ DIFFERENCES.*\n((?:  .*\n)+)", output, re.M)
        named = re.findall(r"^  (\S.*)\n    old: ", found, re.M)
        assert named, output
        assert all(re.match(where, name) for name in named), output
