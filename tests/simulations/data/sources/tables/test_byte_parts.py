import bz2
import gzip
import itertools
import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.sources.tables import byte_parts as module
from fedlm.simulations.data.sources.tables.byte_parts import byte_parts, last_line_end
from tests.simulations.data.sources.source_reading import byte_parts_of

LINES = b"".join(b"line %d %s\n" % (i, b"x" * (i % 50)) for i in range(500))
COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def after_two_letters(lines):
    """Two letters begin no other encoding."""
    return b"ab" + b"\n".join(lines) if lines else b""


@given(st.lists(st.binary(max_size=12)).map(after_two_letters), st.integers(1, 20))
def test_parts_are_whole_lines_and_together_the_file(data, part_bytes):
    parts = byte_parts_of(data, last_line_end, part_bytes)
    assert b"".join(part.data for part in parts) == data
    assert all(part.data.endswith(b"\n") for part in parts[:-1])
    assert all(part.data for part in parts) or not data
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    for part in parts:
        assert part.first_line == 1 + data.count(b"\n", 0, part.start)
        assert data[part.start : part.stop] == part.data


@pytest.mark.parametrize("suffix", ["", *COMPRESS])
def test_compressed_or_not_a_file_has_the_same_parts(tmp_path, suffix):
    path = tmp_path / f"lines{suffix}"
    path.write_bytes(COMPRESS.get(suffix, bytes)(LINES))
    parts = list(byte_parts(path, last_line_end, 1000))
    assert len(parts) > 10
    assert b"".join(part.content.load() for part in parts) == LINES
    assert all((part.content.data is None) == (suffix == "") for part in parts)
    assert sum(part.size for part in parts) == path.stat().st_size
    path.write_bytes(b"" if suffix == ".gz" else COMPRESS.get(suffix, bytes)(b""))
    (part,) = byte_parts(path, last_line_end)
    assert (part.content.load(), part.size) == (b"", path.stat().st_size)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_damaged_compressed_file_is_named(tmp_path, suffix):
    path, whole = tmp_path / f"lines{suffix}", COMPRESS[suffix](LINES)
    for content in (
        whole[:-5],
        whole[: len(whole) // 2],
        whole[:60] + bytes(len(whole) - 100) + whole[-40:],
        whole[:10] + b"\xff" * 100,
        b"this is no archive at all, but it is long enough" * 3,
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"lines{suffix}: is damaged or cut off \(.*Fetch the file again"):
            list(byte_parts(path, last_line_end, 1000))


def test_a_file_that_is_gone_or_changes_meanwhile_is_named(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(LINES)
    first = next(byte_parts(path, last_line_end, 5000))
    path.write_bytes(LINES[:100])
    with pytest.raises(DataError, match="became shorter"):
        first.content.load()
    path.unlink()
    for read in (first.content.load, lambda: list(byte_parts(path, last_line_end))):
        with pytest.raises(DataError, match=r"lines: cannot be read \(No such file or directory\)"):
            read()
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)"):
        list(byte_parts(tmp_path, last_line_end))


def test_a_record_that_does_not_end_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_RECORD_BYTES", 1 << 20)
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\n" + b"x" * (3 << 20))
    with pytest.raises(DataError, match=r"line 3 \(byte 8\) begins a record of more than 1 MiB"):
        list(byte_parts(path, last_line_end, 1 << 18))


def test_a_long_record_is_looked_at_once():
    looked_at = []

    def find_end(data, start):
        looked_at.append(len(data) - start)
        return last_line_end(data, start)

    byte_parts_of(b"x" * 1000 + b"\nend", find_end, 10)
    assert sum(looked_at) <= 1010
    assert set(itertools.islice(looked_at, 100)) == {10}
