"""Attempts in a database: read back as they were at every step, and abandoned with the process that held the sum."""

import contextlib

import pytest

from fedlm.fl_core.deployment.secure_aggregation.attempts_sql import SecureAttempts
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state_sql import sqlite_url
from tests.support import secure_cohorts as cohorts


@pytest.fixture
def kept(tmp_path):
    with contextlib.closing(Database(sqlite_url(tmp_path / "state.db"))) as database:
        yield SecureAttempts(database)


def test_an_attempt_is_read_back_as_it_was_at_every_step_and_goes_on(kept):
    cohort = cohorts.Cohort(5)
    for step in (lambda: None, cohort.deal, lambda: cohort.mask([2]), cohort.reveal, cohort.finish):
        step()
        kept.save(cohort.attempt)
        read = kept.read(cohorts.NAME.attempt)
        assert read == cohort.attempt
        assert read.roster.digest == cohort.roster.digest
        cohort.attempt = read
    assert (cohort.total == cohort.plain()).all()
    assert kept.read(b"another") is None


def test_no_secret_of_a_member_is_in_the_database_but_the_shares_that_it_gave(kept, tmp_path):
    cohort = cohorts.Cohort(5).deal().mask([2]).reveal()
    kept.save(cohort.attempt)
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert cohort.members[0].advertise().masking_key in written
    for one in cohort.members:
        secrets = (one._own_mask, one._masking.private_bytes_raw(), one._sealing.private_bytes_raw())
        assert not any(secret in written for secret in secrets)


@pytest.mark.parametrize("announced", [False, True])
def test_open_attempts_are_abandoned_and_count_as_released_once_survivors_were_told(kept, announced):
    cohort = cohorts.Cohort(5).deal()
    kept.save(cohorts.SecureAttempt(cohorts.NAME._replace(attempt=b"over"), "finished"))
    if announced:
        cohort.mask()
    kept.save(cohort.attempt)
    assert kept.abandon_open("the server ended") == announced
    assert kept.abandon_open("again") == 0
    read = kept.read(cohorts.NAME.attempt)
    assert (read.phase, read.reason, read.announced) == ("abandoned", "the server ended", announced)
    assert kept.announced(cohorts.NAME.round_number) == announced
    assert kept.read(b"over").phase == "finished"
