"""A database with some history, as text, kept so that the migrations of later versions carry it over.

    python -m tests.deployment.recorded_history tests/deployment/recorded REVISION

records the tables of a revision, once, when a version with it is released. The last step of `migrations` names it.
"""

import contextlib
import json
import sqlite3
import sys
import tempfile
from pathlib import Path

from alembic import command
from alembic.config import Config
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import text

import fedlm.fl_core.deployment.state.migrations
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fl_core.deployment.runs.run_queue import FINISHED, RunQueue
from fedlm.fl_core.deployment.secure_aggregation.attempts_sql import SecureAttempts
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state import AttemptRecord, ReleaseRecord, SeenClient
from fedlm.fl_core.deployment.state.state_sql import SqlState, sqlite_url
from fedlm.fl_core.deployment.transparency.stored_log import StoredLog

ATTEMPT = AttemptRecord("aa", 0, "finished", "", 1e9, 2.5, 3, 2, 0, 1, 5_000_000_000, 6_000_000_000)
LEAVES = [messages.LogEntry(population="p", run="run", release=json.dumps({"rounds": one})) for one in (1, 2)]
MIGRATIONS = Path(fedlm.fl_core.deployment.state.migrations.__file__).parent
_SEED = bytes(range(32))


def write(database):
    """Rounds, who took part, releases, runs of a queue and a log."""
    state, queue = SqlState(database), RunQueue(database)
    state.claim("run")
    assert state.enter([], "process")
    state.record_check_ins([SeenClient(one, f"client{one}", "0.1", 2, 1e9, 5.0) for one in range(4)])
    state.record_attempt(ATTEMPT, [0, 2], [1])
    state.record_attempt(ATTEMPT._replace(token="bb", round_number=1, outcome="abandoned", reason="too few"), [])
    state.record_attempt(ATTEMPT._replace(token="cc", round_number=1), [3, 2])
    state.record_release(ReleaseRecord(1, "digest", 1e9))
    state.record_release(ReleaseRecord(2, "another", 2e9))
    queue.submit("one", {"rounds": 3, "privacy": "tree"}, lambda runs: 7, by="ann")
    queue.submit("two", {"rounds": 4}, by="ben")
    queue.become("two", FINISHED)
    with database.writing() as connection:
        connection.execute(text("INSERT INTO log_keys VALUES (:key)"), {"key": _SEED})
        connection.execute(text("INSERT INTO secure_attempts VALUES ('dd', 2, 'masking', 1, '')"))
        connection.execute(text("INSERT INTO secure_members VALUES ('dd', 0, 'client1', 1), ('dd', 1, 'client0', 0)"))
    StoredLog(database).enter([one.SerializeToString() for one in LEAVES])


def read(database):
    """All of that, JSON-able, as this version understands it."""
    state, log = SqlState(database), StoredLog(database).signed
    SecureAttempts(database).settle()
    key = Ed25519PrivateKey.from_private_bytes(_SEED).public_key().public_bytes_raw()
    assert log.head().key == key
    return json.loads(
        json.dumps(
            {
                "run": state.run(),
                "entered": state.entered("process"),
                "clients": state.clients(),
                "attempts": [one._replace(started=0.0) for one in state.attempts(9)],
                "totals": state.totals(),
                "finished": state.finished_rounds(),
                "released": state.last_release(),
                "participation": state.realised_participation()._asdict(),
                "runs": [run._asdict() for run in RunQueue(database).all()],
                "log": [log.size, log.head().root.hex()],
            }
        )
    )


def main(folder, revision):
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "state.db"
        with contextlib.closing(Database(sqlite_url(path), open_now=False)) as database:
            config = Config()
            config.set_main_option("script_location", str(MIGRATIONS))
            with database.writing() as connection:
                config.attributes["connection"] = connection
                command.upgrade(config, revision)
            write(database)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            lines = list(connection.iterdump())
        with contextlib.closing(Database(sqlite_url(path))) as database:
            recorded = {"says": read(database), "sql": lines}
    text_of = json.dumps(recorded, indent=1) + "\n"
    (Path(folder) / f"tables-{revision}.json").write_text(text_of, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
