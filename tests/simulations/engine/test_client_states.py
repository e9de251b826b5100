"""What simulated clients keep, on disk."""

import contextlib
import sqlite3
import stat

import numpy as np
import pytest

from fedlm.fl_core.errors import CheckpointError, DiskError
from fedlm.simulations.engine.client_states import ClientStates

FIRST = {"a": np.zeros(2, np.float32), "b": None, "c": [np.ones((1, 3), np.float32)]}


def states(number, clients):
    return {
        "a": np.full((clients, 2), number, np.float32),
        "b": None,
        "c": [np.full((clients, 1, 3), -number, np.float32)],
    }


def read(kept, *clients):
    found = kept.read(np.array(clients), FIRST)
    return found["a"][:, 0].tolist(), found["c"][0][:, 0, 2].tolist()


def test_clients_keep_the_last_and_new_ones_have_the_first(tmp_path):
    with contextlib.closing(ClientStates(tmp_path / "file")) as kept:
        kept.write(0, np.array([7, 3]), states(5, 2))
        kept.write(1, np.array([3]), states(6, 1))
        assert kept._file.execute("PRAGMA synchronous").fetchone() == (3,)
        assert read(kept, 3, 4, 7) == ([6, 0, 5], [-6, 1, -5])
        assert [kept.has(client) for client in (3, 4, 7)] == [True, False, True]
        assert kept.read(np.array([3]), FIRST, room=4)["a"].tolist() == [[6, 6], [0, 0], [0, 0], [0, 0]]
        # A round is kept whole or not at all.
        with pytest.raises(IndexError):
            kept.write(2, np.array([3, 7]), states(8, 1))
        assert read(kept, 3, 7) == ([6, 5], [-6, -5])
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_a_run_that_goes_back_has_what_was_kept_then(tmp_path):
    path = tmp_path / "file"
    with contextlib.closing(ClientStates(path, oldest=lambda: 2)) as kept:
        for round_number in range(5):
            kept.write(round_number, np.array([1]), states(round_number, 1))
    with contextlib.closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT round FROM states ORDER BY round").fetchall() == [(1,), (2,), (3,), (4,)]
    with contextlib.closing(ClientStates(path, rounds=2)) as kept:
        assert read(kept, 1) == ([1], [-1])
    with pytest.raises(CheckpointError, match="kept in 2 rounds, but the run goes on after 5"):
        ClientStates(path, rounds=5)
    with contextlib.closing(ClientStates(path)) as kept:
        assert read(kept, 1) == ([0], [1])


def test_a_file_that_is_not_that_of_the_run_is_refused(tmp_path):
    path = tmp_path / "file"
    with contextlib.closing(ClientStates(path)) as kept:
        kept.write(3, np.array([1]), states(1, 1))
        with pytest.raises(CheckpointError, match="has other layers than those of the run"):
            kept.read(np.array([1]), {"a": np.zeros(3, np.float32)})
    with pytest.raises(CheckpointError, match="kept in 4 rounds, but the run goes on after 5; put back"):
        ClientStates(path, rounds=5)
    path.unlink()
    with pytest.raises(CheckpointError, match="kept in 0 rounds, but the run goes on after 4"):
        ClientStates(path, rounds=4)
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(CheckpointError, match="is damaged"):
        ClientStates(path)
    with pytest.raises(DiskError, match="cannot be written"):
        ClientStates(tmp_path / "nowhere" / "file")
