import hashlib
from pathlib import Path

import numpy as np
import pytest

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.cohort_files import read_availability, read_weights

CLIENTS = {"a": 0, "b": 1, "c": 2}


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "file.csv"

    def write(text, encoding="utf-8"):
        path.write_bytes(text.encode(encoding))
        return path

    return write


def test_a_trace_is_intervals_and_those_past_midnight_are_two(written):
    path = written("client_id,start,end\na,0,6.5\nb,22,2\nnobody,1,2\n\nb,8,9\nnobody,3,2\nb,23,0\n")
    found, file = read_availability(path, CLIENTS, 24)
    rows = sorted(zip(found.client.tolist(), found.start.tolist(), found.end.tolist(), strict=True))
    assert rows == [(0, 0, 6.5), (1, 0, 2), (1, 8, 9), (1, 22, 24), (1, 23, 24)]
    there = {0: [0, 1], 1.99: [0, 1], 2: [0], 6.5: [], 8.5: [1], 23.9: [1]}
    assert {hour: found.clients_at(hour).tolist() for hour in there} == there
    assert (file.clients, file.unknown_rows) == (2, 2)
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    week, _ = read_availability(written("client_id,start,end\nc,160,10\n"), CLIENTS, 168)
    assert sorted(zip(week.start.tolist(), week.end.tolist(), strict=True)) == [(0, 10), (160, 168)]


def test_weights_are_by_client_and_0_for_the_others(written):
    weights, file = read_weights(written('\ufeffclient_id,weight\r\n"c",2.5\r\nx,1\r\na,0\r\n'), CLIENTS)
    np.testing.assert_array_equal(weights, [0, 0, 2.5])
    assert (file.clients, file.unknown_rows) == (2, 1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,1", "line 3: found 2 columns, expected client_id,start,end"),
        ("a,1,2,3", "line 3: found 4 columns"),
        ("a,one,2", "line 3: start is 'one', expected a finite number"),
        ("a,1,nan", "line 3: end is 'nan', expected a finite number"),
        ("a,-1,2", "line 3: start is -1, expected hours between 0 and the length of the cycle, 24"),
        ("a,1,24.5", "line 3: end is 24.5.*availability_cycle_hours"),
        ("a,5,5", "line 3: start and end are both 5, expected them to differ"),
        ('a,"1"2,3', "line 3: not a row of a CSV file"),
        ("x" * 70_000, "line 3: found a line of 65,536 bytes or more"),
    ],
)
def test_a_bad_row_of_a_trace_is_named(written, rows, message):
    with pytest.raises(DataError, match=f"file.csv, {message}"):
        read_availability(written(f"client_id,start,end\nb,1,2\n{rows}\n"), CLIENTS, 24)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the file is empty, expected the header 'client_id,weight'"),
        ("client,weight\na,1\n", "line 1: found the header 'client,weight', expected 'client_id,weight'"),
        ("client_id,weight\na,-1\n", "line 2: weight is -1, expected 0 or more"),
        ("client_id,weight\na,1\n\xe9,1\n", "line 3: found bytes that are not UTF-8"),
        ("client_id,weight\na,1\nb,1\na,1\n", "line 4: client 'a' has a weight already"),
        ("client_id,weight\nx,1\ny,1\n", ": none of its clients is a training client of the data .2 rows"),
    ],
)
def test_a_bad_file_of_weights_is_named(written, text, message):
    with pytest.raises(DataError, match="file.csv,? ?" + message):
        read_weights(written(text, "latin-1"), CLIENTS)
    with pytest.raises(DataError, match=r"nowhere\.csv: cannot be read"):
        read_weights(Path("nowhere.csv"), CLIENTS)
