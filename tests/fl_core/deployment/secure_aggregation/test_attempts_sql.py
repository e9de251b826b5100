"""Attempts in a database: what is kept of them, and that they are abandoned with the process that held the sum."""

import contextlib

import pytest
import sqlalchemy as sql

from fedlm.fl_core.deployment.secure_aggregation.attempts_sql import SecureAttempts
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state_sql import sqlite_url
from fedlm.fl_core.deployment.state.tables import SECURE_MEMBERS
from tests.support import secure_cohorts as cohorts


@pytest.fixture
def kept(tmp_path):
    with contextlib.closing(Database(sqlite_url(tmp_path / "state.db"))) as database:
        yield SecureAttempts(database)


def test_no_key_share_or_sum_of_a_member_is_in_the_database_but_who_may_be_in_the_sum(kept, tmp_path):
    cohort = cohorts.Cohort(5).deal([2]).mask().reveal()
    kept.save(cohort.attempt)
    with kept._database.reading() as connection:
        rows = connection.execute(sql.select(SECURE_MEMBERS)).all()
    assert {(row.owner, row.dealt) for row in rows} == {(f"client{one}", one != 2) for one in range(5)}
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    shares = [share for one in cohort.attempt.revealed.values() for share in one.own_masks.values()]
    keys = [one.masking_key for one in cohort.attempt.advertisements.values()]
    assert not any(one in written for one in (*shares, *keys, cohort.total.tobytes()))


@pytest.mark.parametrize("charged", [False, True])
def test_open_attempts_are_abandoned_and_count_as_released_once_vectors_may_leave(kept, charged):
    cohort = cohorts.Cohort(5)
    kept.save(cohorts.SecureAttempt(cohorts.NAME._replace(attempt=b"over"), "finished"))
    if charged:
        cohort.deal()
    kept.save(cohort.attempt)
    assert kept.abandon_open("the server ended") == charged
    assert kept.abandon_open("again") == 0
    expected = ("abandoned", charged, "the server ended")
    assert cohorts.kept_attempts(kept) == {cohorts.NAME.attempt: expected, b"over": ("finished", False, "")}
