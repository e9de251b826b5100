"""What happens around a server: a clock that steps back and forth."""

import asyncio
import logging
import time

import pytest

from fedlm.fl_core.deployment.endpoints import Endpoints
from fedlm.fl_core.deployment.roles import coordinate
from fedlm.fl_core.deployment.state.state_sql import sqlite_url
from tests.deployment import small_deployment as small
from tests.deployment.test_aggregators import aggregators_here

COHORT = {"cohort_size": 2, "minimum_reports": 2, "over_selection": 1.5, "rounds": 4}
SETTINGS = small.PRIVACY | COHORT | {"noise_seed": "entropy", "min_separation": 3, "max_participations": 4}


async def step_the_clock(rows, monkeypatch):
    """Set the clock an hour back after the first round, and an hour forwards after the second."""
    now = time.time
    for count, seconds in ((1, -3600.0), (2, 3600.0)):
        while len(rows) < count:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(time, "time", lambda shift=seconds: now() + shift)


def check(rows):
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    assert all(0 <= row["seconds"] < 60 for row in rows)


@pytest.mark.long
async def test_a_clock_that_steps_takes_the_lead_from_nobody_and_loses_no_aggregator(
    tmp_path, monkeypatch, free_port, caplog
):
    caplog.set_level(logging.INFO, "fedlm")
    settings, url, rows, out = small.deployment(**SETTINGS), sqlite_url(tmp_path / "state.db"), [], tmp_path / "run"
    what = small.task(settings)

    def one_more(stands_by):
        endpoints = Endpoints(stands_by=stands_by)
        return asyncio.create_task(coordinate(what, out, endpoints, rows.append, database=url))

    async with asyncio.timeout(small.PATIENCE), aggregators_here(2, settings, tmp_path, url, free_port):
        coordinating = one_more(False)
        async with small.running([small.make_client(free_port, tmp_path, one) for one in range(10)]):
            while not rows:
                await asyncio.sleep(0.01)
            other = one_more(True)
            await step_the_clock(rows, monkeypatch)
            assert await coordinating
        assert await other, "it finds that the run is over"
    check(rows)
    said = [record.message for record in caplog.records]
    assert "aggregator_lost" not in said
    assert said.index("leading") > said.index("run_over")
