"""Tests are coroutines; their databases are SQLite, and a PostgreSQL server of the tests' own where it is installed."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from fedlm.fl_core.deployment.state.state_sql import sqlite_url
from tests.support.coroutines import pytest_pyfunc_call
from tests.support.postgresql import PostgreSQL

__all__ = ["pytest_pyfunc_call"]


@pytest.fixture(scope="session")
def postgresql():
    if shutil.which("initdb") is None or shutil.which("pg_ctl") is None:
        pytest.skip("PostgreSQL (initdb and pg_ctl) is not installed")
    if not os.geteuid() and shutil.which("setpriv") is None:
        pytest.skip("PostgreSQL does not run as root, and setpriv is not installed")
    with tempfile.TemporaryDirectory(prefix="fedlm-postgresql-") as folder:
        server = PostgreSQL(Path(folder))
        server.start()
        yield server
        server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request, tmp_path):
    """The URL of a new, empty database."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "state.db")
    return request.getfixturevalue("postgresql").url()
