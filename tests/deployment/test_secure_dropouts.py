"""Devices of secure sums in processes of their own: none sees another's numbers, and some are killed."""

import asyncio
import contextlib
import dataclasses
import os
import signal

import numpy as np
import pytest

from fedlm.fedlm_client.link.credentials import read_certificates
from fedlm.fedlm_client.secure_aggregation.device import SecureSums
from fedlm.fedlm_client.secure_aggregation.floors import Floors
from fedlm.fedlm_client.secure_aggregation.member import Member
from fedlm.fl_core.deployment.server.reports.summed_integers import ExactSums
from fedlm.fl_core.deployment.state.state_sql import DATABASE_FILE, SqlState, sqlite_url
from tests.deployment import small_deployment as small
from tests.deployment.test_secure_sums import NOISED, PROMPT, SECURE, make_credentials
from tests.support.told_vectors import tell

COUNT = 12
# What a device is asked when it ends, and whether its vector is in the sum by then.
PHASES = {"deal": False, "mask": False, "agree": True, "reveal": True}
FLOORS = Floors(least_cohort=6)


def take_part_until(port, folder, number, credentials, phase):
    """Run a client in a process of its own, which ends when it is asked something."""

    def end(member, *asked):
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(Member, phase, end)
    small.make_client(port, folder, number, credentials=credentials, sums=SecureSums.read(credentials, FLOORS)).run()


@pytest.mark.long
async def test_a_sum_goes_on_without_devices_that_are_killed_in_each_phase(tmp_path):
    keys, credentials = make_credentials(tmp_path / "keys", COUNT)
    sizes = {"cohort_size": COUNT, "minimum_reports": 6, "rounds": 1, "reporting_seconds": 20.0}
    settings = small.deployment(**NOISED | PROMPT | sizes)
    task = dataclasses.replace(small.task(settings), authorities=tuple(read_certificates(keys / "ca.pem")))
    server = small.Server(task, tmp_path / "run", keys=keys)
    async with asyncio.timeout(small.PATIENCE), server:
        words = zip(range(COUNT), credentials, PHASES, strict=False)
        killed = [small.in_process(take_part_until, server.port, tmp_path, *word) for word in words]
        others = [
            small.make_client(server.port, tmp_path, one, credentials=mine, sums=SecureSums.read(mine, FLOORS))
            for one, mine in list(enumerate(credentials))[len(PHASES) :]
        ]
        async with small.running(others):
            assert await server.over
    for process in killed:
        process.join(10)
    assert all(process.exitcode for process in killed), "a device came to its end"
    survivors = COUNT - len(PHASES) + sum(PHASES.values())
    assert [row["clients"] for row in server.rows] == [survivors]
    with contextlib.closing(SqlState(sqlite_url(tmp_path / "run" / DATABASE_FILE))) as state:
        assert state.realised_participation().clients == survivors


def take_part_and_tell(port, folder, number, credentials):
    tell(Member, folder / "told")
    small.make_client(port, folder, number, credentials=credentials, sums=SecureSums.read(credentials, Floors())).run()


@pytest.mark.long
async def test_exact_sums_of_ten_processes_are_the_plain_ones_bit_for_bit(tmp_path, monkeypatch):
    sums, aggregate = [], ExactSums.aggregate
    seen = lambda this, total, *others: sums.append((total.copy(), this.bits)) or aggregate(this, total, *others)  # noqa: E731
    monkeypatch.setattr(ExactSums, "aggregate", seen)
    (tmp_path / "told").mkdir()
    keys, credentials = make_credentials(tmp_path / "keys", 10)
    sizes = {
        "cohort_size": 10,
        "minimum_reports": 10,
        "rounds": 1,
        "reporting_seconds": 60.0,
        "selection_seconds": 60.0,
    }
    settings = small.deployment(**SECURE | PROMPT | sizes)
    task = dataclasses.replace(small.task(settings), authorities=tuple(read_certificates(keys / "ca.pem")))
    server, devices = small.Server(task, tmp_path / "run", keys=keys), []
    try:
        async with asyncio.timeout(small.PATIENCE), server:
            words = [(server.port, tmp_path, one, mine) for one, mine in enumerate(credentials)]
            devices = [small.in_process(take_part_and_tell, *word) for word in words]
            assert await server.over
    finally:
        for process in devices:
            process.kill()
    assert [row["clients"] for row in server.rows] == [10]
    vectors = [np.load(tmp_path / f"told/client{one}.npy") for one in range(10)]
    ((total, bits),) = sums
    np.testing.assert_array_equal(total, sum(vectors) % (1 << bits))
    assert len({one.tobytes() for one in vectors}) == 10
