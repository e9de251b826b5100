"""Reading sources in tests without importing them."""

import io
import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import SkippedCounts
from fedlm.simulations.data.sources.tables.byte_parts import stream_parts


def no_progress(phase, done, total, unit):
    pass


def read(source, workspace=Path("unused")):
    """Return a source's texts, without where they are and how their order is written, and the counts of what it
    skipped."""
    skipped = SkippedCounts()
    source.files()
    reading = source.open(workspace, no_progress)
    texts = [plain(text) for part in reading.parts for text in reading.read(part.content, skipped)]
    return texts, skipped


def plain(text):
    """Return a text without what is there for messages."""
    return text._replace(place="", order_form=None)


def byte_parts_of(data, find_end, part_bytes):
    """Cut bytes in memory as a file of them would be cut."""
    stream = io.BytesIO(data)
    parts = stream_parts(Path("memory"), stream, find_end, keep_data=True, position=stream.tell, part_bytes=part_bytes)
    return [part.content for part in parts]


@contextmanager
def writing(path):
    """Write into an SQLite database."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        yield connection


def change(path, *statements):
    with writing(path) as connection:
        for statement in statements:
            connection.execute(statement)
    return path


def assert_refused(source, *words):
    """See that a source names its file, and says some words, when its files are read."""
    with pytest.raises(DataError) as refusal:
        read(source, source.paths[0].parent)
    for word in (source.paths[0].name, *words):
        assert word in str(refusal.value)
