import io
import tokenize
from pathlib import Path

import pytest

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import SkippedCounts
from fedlm.simulations.data.sources.standard_library import (
    comment_blocks,
    docstrings,
    module_files,
    read_modules,
    stdlib_root,
)

SOURCE = '''#!/usr/bin/env python
"""The module says this."""
# A comment of two
# lines is one block.
    # Another column is another.
text = "# not a comment"  # beside the code
other = \'\'\'
# not one either
\'\'\'
#: the attribute comment
class Thing:
    """The class says that."""
    if True:
        async def method(self):
            """The method
            says more."""
    else:
        def other(self):
            """The other way."""
def function():
    """The function is last."""
'''


def test_docstrings_and_comment_blocks_are_in_file_order():
    assert list(docstrings(SOURCE)) == [
        *("The module says this.", "The class says that.", "The method\nsays more."),
        *("The other way.", "The function is last."),
    ]
    assert list(comment_blocks(SOURCE)) == [
        *("!/usr/bin/env python", "A comment of two\nlines is one block.", "Another column is another."),
        *("beside the code", "the attribute comment"),
    ]
    beside_code = "a = 1  # first\nb = 2  # second\n       # goes on\n"
    assert list(comment_blocks(beside_code)) == ["first", "second\ngoes on"]


@pytest.mark.parametrize("module", ["argparse", "tokenize", "re._parser"])
def test_comments_are_those_of_tokenize(module):
    path = dict(module_files(stdlib_root()))[module]
    source = path.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    expected = [t.string.lstrip("#:").removeprefix(" ") for t in tokens if t.type == tokenize.COMMENT]
    assert "\n".join(comment_blocks(source)).split("\n") == expected


def test_module_files_names_and_exclusions(tmp_path: Path):
    with pytest.raises(DataError, match=r"found no Python source.*Use a Python"):
        module_files(tmp_path)
    for name in [
        *("alone.py", "package/__init__.py", "package/inner.py", "site-packages/other.py", "lib-dynload/built.py"),
        *("package/__pycache__/cached.py", "config-3.11-linux/script.py", "_data_x86-linux.py", "notes.txt"),
    ]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert [name for name, _ in module_files(tmp_path)] == ["alone", "package", "package.inner"]


def test_unreadable_modules_are_counted_by_reason(tmp_path: Path):
    (tmp_path / "good.py").write_text('"""This module is quite good."""\n')
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9 is not valid here\n")
    (tmp_path / "cookie.py").write_bytes(b"# -*- coding: no-such-codec -*-\n")
    (tmp_path / "old.py").write_text('print "Python two code is here"\n')
    (tmp_path / "null.py").write_bytes(b"x = 1\0\n")
    skipped = SkippedCounts()
    clients = list(read_modules(module_files(tmp_path), skipped))
    assert [(c.client_id, c.sentences) for c in clients] == [("good", ["This module is quite good."])]
    assert skipped.as_dict() == {
        "module does not decode": 2,
        "module does not parse": 2,
        "module without sentences": 1,
    }
