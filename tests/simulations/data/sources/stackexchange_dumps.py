"""Small dumps of Stack Exchange sites, made up for tests."""

import tempfile
from pathlib import Path
from xml.sax.saxutils import quoteattr

import py7zr
import pytest

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import SkippedCounts
from fedlm.simulations.data.sources.stackexchange.files import find_dumps
from fedlm.simulations.data.sources.stackexchange.source import StackExchange, dump_parts

DAY = 24 * 60 * 60 * 1000
"""Of milliseconds: the time of what `post` and `comment` make."""


def row(**attributes):
    return "  <row " + " ".join(f"{name}={quoteattr(value)}" for name, value in attributes.items()) + " />\n"


def post(user="7", body="<p>Some words.</p>", kind="1", date="1970-01-02T00:00:00.123", **more):
    return row(Id="1", PostTypeId=kind, CreationDate=date, Body=body, OwnerUserId=user, **more)


def comment(user="7", text="A comment.", date="1970-01-02T00:00:00.200"):
    return row(Id="1", PostId="1", Text=text, CreationDate=date, UserId=user)


def dump(*rows, root="posts"):
    return f'\ufeff<?xml version="1.0" encoding="utf-8"?>\n<{root}>\n{"".join(rows)}</{root}>\n'


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def archive(path, **members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with py7zr.SevenZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(content, f"{name}.xml")
    return path


def read(*paths, part_bytes=None, **settings):
    """Return the texts, and what was left out."""
    source = StackExchange(paths=paths, **settings)
    dumps = find_dumps(paths, ("posts", "comments") if source.comments else ("posts",))
    skipped = SkippedCounts()
    with tempfile.TemporaryDirectory() as workspace:
        reading = source.open(Path(workspace), lambda *call: None)
        parts = reading.parts if part_bytes is None else dump_parts(dumps, Path(workspace), part_bytes)
        texts = [text for part in parts for text in reading.read(part.content, skipped)]
        assert not list(Path(workspace).iterdir())
    return texts, skipped


def refused(*paths, **settings):
    with pytest.raises(DataError) as error:
        read(*paths, **settings)
    return str(error.value)
