"""Changes of the code are found where they show, and nowhere else: of a number, a sentence, a byte of a message."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden.sides import ROOT

pytestmark = pytest.mark.long

COMMIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "All"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """The code as it is here, with what is not committed, as a repository of its own."""
    folder = tmp_path_factory.mktemp("copy")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (path := ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, folder / name, follow_symlinks=False)
    for words in (["git", "init", "--quiet"], ["git", "add", "--all", "--force"], COMMIT):
        subprocess.run(words, cwd=folder, check=True)
    return folder


@pytest.mark.parametrize(
    ("file", "before", "after", "case", "where"),
    [
        (
            "fl_core/rounds/aggregation.py",
            "leaf / weight",
            "leaf / (weight * 1.001)",
            "python",
            r"0\.stdout|parameters\.npz",
        ),
        (
            "fl_core/privacy/origins/vocabulary_origin.py",
            "COVERED: {",
            "COVERED; {",
            "text",
            r"[01]\.stdout|data/store\.json .*state",
        ),
        (
            "clients/fedlm_client/fedlm_client/client.py",
            'VERSION = "0.1.0"',
            'VERSION = "0.2"',
            "deployment",
            r"wire|.*state\.db .*version",
        ),
    ],
)
def test_a_change_is_reported_where_it_shows(repository: Path, file, before, after, case, where):
    path = repository / file
    code = path.read_text()
    assert code.count(before) == 1
    path.write_text(code.replace(before, after))
    try:
        status, output = run_tool(repository, case, "keys")
    finally:
        path.write_text(code)
    assert status == 1, output
    assert re.search(r"^keys +equal", output, re.M), output
    assert re.search(rf"^{case} +\d+ DIFFERENCES", output, re.M), output
    named = re.findall(r"^  (\S.*)\n    old: ", output, re.M)
    assert named, output
    assert all(re.match(where, name) for name in named), output


def run_tool(folder, *cases):
    words = [sys.executable, "-m", "tests.golden", "--against", "HEAD", "--cases", *cases]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr
