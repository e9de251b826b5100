"""What happens around a server: a clock that steps backwards."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from fedlm.fl_core.deployment.server import client_registry, local_collection, training
from tests.deployment import small_deployment as small


@pytest.mark.long
async def test_a_clock_that_steps_backwards_stops_nothing(tmp_path, monkeypatch):
    cohort = {"cohort_size": 2, "minimum_reports": 2, "over_selection": 1.5, "rounds": 4}
    private = small.PRIVACY | {"noise_seed": "entropy", "min_separation": 3, "max_participations": 4}
    server, shift = small.Server(small.task(small.deployment(**private | cohort)), tmp_path / "run"), [0.0]
    clock = SimpleNamespace(time=lambda: time.time() + shift[0], monotonic=time.monotonic, sleep=time.sleep)
    # The server's own clock alone.
    for module in (client_registry, local_collection, training):
        monkeypatch.setattr(module, "time", clock)
    async with (
        asyncio.timeout(small.PATIENCE),
        server,
        small.running([small.make_client(server.port, tmp_path, one) for one in range(10)]),
    ):
        for count, seconds in ((1, -3600.0), (2, 3600.0)):
            while len(server.rows) < count:
                await asyncio.sleep(0.01)
            shift[0] = seconds
        assert await server.over
    assert [row["round"] for row in server.rows] == [0, 1, 2, 3]
    assert all(0 <= row["seconds"] < 60 for row in server.rows)
