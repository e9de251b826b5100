"""Reading sources in tests without importing them."""

import io
from pathlib import Path

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
