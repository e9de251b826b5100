"""The server's state: the same promises in SQLite and in PostgreSQL."""

import contextlib
import json
import os
import sqlite3
import threading
from pathlib import Path

import pytest
import sqlalchemy as sql
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state import AttemptRecord, ClientRecord, ReleaseRecord, SeenClient, StateError
from fedlm.fl_core.deployment.state.state_sql import SqlState, sqlite_url
from fedlm.fl_core.deployment.state.tables import TABLES
from tests.deployment import recorded_history

ATTEMPT = AttemptRecord("aa", 0, "finished", "", 1e9, 2.5, 3, 2, 0, 1, 5_000_000_000, 6_000_000_000)


def seen(*numbers, check_ins=1):
    return [SeenClient(number, f"client{number}", "0.1", check_ins, 1e9) for number in numbers]


@pytest.fixture
def state(database_url):
    opened = SqlState(database_url)
    yield opened
    opened.close()


def test_what_was_recorded_is_there_for_the_next_process(database_url):
    first = SqlState(database_url)
    first.claim("run")
    first.record_check_ins(seen(0, 1, 2))
    first.record_check_ins(seen(1, 3, check_ins=4))
    first.record_attempt(ATTEMPT, [0, 2])
    abandoned = ATTEMPT._replace(token="bb", round_number=1, outcome="abandoned", reason="too few")
    first.record_attempt(abandoned, [])
    first.record_attempt(ATTEMPT._replace(token="cc", round_number=1), [2])
    first.record_release(ReleaseRecord(1, "digest", 1e9))
    first.record_release(ReleaseRecord(1, "digest", 2e9))
    first.close()
    again = SqlState(database_url)
    again.claim("run")
    assert again.clients() == [
        ClientRecord(0, "client0", 0, 1),
        ClientRecord(1, "client1", None, 0),
        ClientRecord(2, "client2", 1, 2),
        ClientRecord(3, "client3", None, 0),
    ]
    assert again.finished_rounds() == 2
    assert again.attempts(2) == [abandoned, ATTEMPT._replace(token="cc", round_number=1)]
    again.close()


def test_an_attempt_counts_once_and_wholly_or_not_at_all(state):
    state.record_check_ins(seen(*range(1200)))
    state.record_check_ins(seen(*range(1300)))
    assert len(state.clients()) == 1300
    with pytest.raises(StateError):
        state.record_attempt(ATTEMPT, [0, 1300])
    assert state.finished_rounds() == 0
    assert state.clients()[0].participations == 0
    state.record_attempt(ATTEMPT, [0])
    state.record_attempt(ATTEMPT, [0])
    assert state.attempts(5) == [ATTEMPT]


def test_rounds_that_run_again_are_forgotten(state):
    state.record_check_ins(seen(0))
    state.record_attempt(ATTEMPT, [0])
    state.record_attempt(ATTEMPT._replace(token="bb", round_number=1), [0])
    state.forget_rounds(1)
    assert state.finished_rounds() == 1
    assert state.clients() == [ClientRecord(0, "client0", 0, 1)]
    assert [attempt.outcome for attempt in state.attempts(2)] == ["finished", "abandoned"]


def test_several_processes_may_open_a_new_database_at_once(database_url):
    opened, errors = [], []

    def open_it():
        try:
            opened.append(Database(database_url))
        except StateError as error:
            errors.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for database in opened:
        database.close()


def test_the_steps_lead_to_the_tables_and_a_database_of_a_newer_version_is_refused(database_url):
    database = Database(database_url)
    with database.writing() as connection:
        assert compare_metadata(MigrationContext.configure(connection), TABLES) == []
        connection.execute(sql.text("UPDATE alembic_version SET version_num = '9999'"))
    database.close()
    with pytest.raises(StateError, match=r"a newer version of fedlm wrote this database .*9999"):
        Database(database_url)


def test_of_two_that_read_and_then_write_one_waits(database_url):
    database = Database(database_url)
    state = SqlState(database_url)
    state.record_check_ins(seen(0))
    reached, results = threading.Barrier(2), []

    def count_up():
        reached.wait()
        for _ in range(20):
            with database.writing() as connection:
                found = connection.scalar(sql.text("SELECT check_ins FROM clients"))
                connection.execute(sql.text("UPDATE clients SET check_ins = :more"), {"more": found + 1})
        results.append(True)

    threads = [threading.Thread(target=count_up) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.reading() as connection:
        assert (results, connection.scalar(sql.text("SELECT check_ins FROM clients"))) == ([True, True], 41)
    database.close()
    state.close()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("secret", "is not the URL of a database"),
        ("mysql://u:secret@host/x", "not supported"),
        ("sqlite:////nowhere/at/all.db", "cannot be opened"),
        ("postgresql://u:secret@127.0.0.1:1/x", "cannot be reached"),
    ],
)
def test_a_database_that_cannot_be_opened_is_named_without_its_password(url, words):
    with pytest.raises(StateError, match=words) as raised:
        Database(url)
    assert "secret" not in str(raised.value)


def test_realised_participation_is_counted_over_all_clients(state):
    assert state.realised_participation() == (0, 0, None)
    state.record_check_ins(seen(0, 1, 2, 3))
    for number, clients in enumerate([[0, 1], [2], [], [1], [0], [1, 2]]):
        state.record_attempt(ATTEMPT._replace(token=f"{number}", round_number=number), clients)
        if number == 1:
            assert state.realised_participation() == (3, 1, None)
    assert state.realised_participation() == (3, 3, 2)


def test_a_state_belongs_to_one_run_which_one_process_at_a_time_enters(state):
    state.claim("run")
    with pytest.raises(StateError, match="another run"):
        state.claim("other")
    assert not state.entered("a")
    assert state.enter([], "a")
    assert state.enter([], "a"), "it was committed although its connection broke"
    assert state.enter(["a"], "b")
    assert (state.entered("a"), state.entered("b")) == (False, True)
    assert not state.enter(["a"], "c")
    assert state.entered("b")


@pytest.mark.parametrize("there_before", [False, True])
def test_only_its_owner_can_read_the_file_that_names_clients(tmp_path, there_before):
    file = tmp_path / "state.db"
    mask = os.umask(0o022)
    try:
        if there_before:
            sqlite3.connect(file).execute("CREATE TABLE t (x)").connection.close()
            assert file.stat().st_mode & 0o777 == 0o644
        state = SqlState(sqlite_url(file))
        state.record_check_ins(seen(0))
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
        state.close()
    finally:
        os.umask(mask)
    assert modes == dict.fromkeys(["state.db", "state.db-wal", "state.db-shm"], 0o600)


@pytest.mark.parametrize("path", [*Path(__file__).parent.glob("recorded/tables-*.json")], ids=lambda one: one.stem)
def test_the_tables_of_a_version_keep_their_history(path, tmp_path):
    recorded = json.loads(path.read_text(encoding="utf-8"))
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as connection:
        connection.executescript("\n".join(recorded["sql"]))
    with contextlib.closing(Database(sqlite_url(tmp_path / "state.db"))) as database:
        assert recorded_history.read(database) == recorded["says"]
