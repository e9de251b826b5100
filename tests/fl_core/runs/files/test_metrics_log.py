"""The record of a run: the same numbers as JSON lines and as TensorBoard events, each row whole or not there."""

import json
import struct

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from fedlm.fl_core.errors import CheckpointError, DiskError
from fedlm.fl_core.runs.files.metrics_log import MetricsLog, read_rows


def events(folder):
    """Read TensorBoard's records: length, its checksum, content, its checksum."""
    found = []
    for path in sorted(folder.glob("events*")):
        content, start = path.read_bytes(), 0
        while start < len(content):
            (length,) = struct.unpack_from("<Q", content, start)
            found.append(Event.FromString(content[start + 12 : start + 12 + length]))
            start += length + 16
    return found


def test_rows_are_recorded_twice(tmp_path):
    with MetricsLog(tmp_path, 3) as log:
        log.append({"round": 3, "loss": 1.5, "seconds": float("nan"), "clients": 7, "unit": "client"})
    (row,) = read_rows(tmp_path / "metrics.jsonl")
    assert row == {"round": 3, "loss": 1.5, "seconds": None, "clients": 7, "unit": "client"}
    version, start, found = events(tmp_path / "tensorboard")
    assert version.file_version == "brain.Event:2"
    # What an earlier process wrote of this round, and later ones, is not shown.
    assert (start.step, start.session_log.status) == (3, SessionLog.START)
    assert found.step == 3
    assert {value.tag: value.simple_value for value in found.summary.value} == {"loss": 1.5, "clients": 7.0}


def append_rows(log, words):
    for number in range(3000):
        log.append({"round": number, **words})


@pytest.mark.parametrize(("numbers", "file"), [(0, "tensorboard"), (100, "metrics.jsonl")])
def test_a_full_disk_is_named_and_no_row_is_cut(tmp_path, numbers, file, largest_file):
    """Events of empty rows are longer than the rows; those of long rows reach the disk later."""
    words = {f"a number with a long name {number}": 0.5 for number in range(numbers)}
    expected = pytest.raises(DiskError, match=rf"{file}: cannot be written.*Make room")
    with MetricsLog(tmp_path, 0) as log, largest_file(20_000), expected:
        append_rows(log, words)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    assert [json.loads(line)["round"] for line in lines] == list(range(len(lines)))
    assert all(line.endswith("\n") for line in lines)
    with MetricsLog(tmp_path, len(lines)) as log:
        log.append({"round": len(lines)})
    assert len(read_rows(tmp_path / "metrics.jsonl")) == len(lines) + 1


@pytest.mark.parametrize("line", ["not json", '{"step": 3}', '{"round": "3"}', "[3]", '{"round": null}'])
def test_a_damaged_record_is_named_and_kept(tmp_path, line):
    record = f'{{"round": 0}}\n{line}\n{{"round": 2}}\n'
    (tmp_path / "metrics.jsonl").write_text(record)
    with pytest.raises(
        CheckpointError, match=r"metrics.jsonl: line 2 is no row of a run's metrics by round.* or give another out"
    ):
        MetricsLog(tmp_path, 3)
    assert (tmp_path / "metrics.jsonl").read_text() == record


def test_what_will_be_run_again_and_half_a_line_are_forgotten(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"round": 0}\n{"round": 1}\n{"rou')
    with MetricsLog(tmp_path, 1) as log:
        assert log.rows == [{"round": 0}]
        log.append({"round": 1, "loss": 2.0})
    assert read_rows(tmp_path / "metrics.jsonl") == [{"round": 0}, {"round": 1, "loss": 2.0}]
