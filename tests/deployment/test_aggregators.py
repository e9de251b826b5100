"""Several processes receive reports and add them up; the coordinator merges their sums, each once or not at all."""

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import socket

import jax
import numpy as np
import small_deployment as small
from sqlalchemy import text
from test_loopback import final_parameters, register_clients, simulate

from fl_core.cohorts import UniformSampler
from fl_core.serving.database import Database
from fl_core.serving.shared_server import aggregate, coordinate
from fl_core.serving.state_sql import DATABASE_FILE, sqlite_url
from fl_core.transport.grpc_server import GrpcServer


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.asynccontextmanager
async def aggregators_here(count, settings, folder, url, port):
    """Run aggregators in this process, all on one port."""

    def listen(handlers):
        return GrpcServer(handlers, f"127.0.0.1:{port}", settings.chunk_bytes, share_port=True)

    tasks = [
        asyncio.create_task(aggregate(small.task(settings), folder / f"aggregator{one}", listen, url, 0.5))
        for one in range(count)
    ]
    try:
        yield tasks
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def test_three_aggregators_come_to_what_one_loop_over_clients_comes_to(tmp_path):
    everyone = {"cohort_size": small.CLIENTS, "minimum_reports": small.CLIENTS, "over_selection": 1.0}
    settings = small.deployment(**small.PRIVACY | everyone | {"min_separation": 1}, rounds=2, upload_bits=32)
    out, port = tmp_path / "run", free_port()
    url = sqlite_url(out / DATABASE_FILE)
    register_clients(out)

    async def deploy():
        rows = []
        async with asyncio.timeout(60), aggregators_here(3, settings, tmp_path, url, port):
            async with small.running([small.make_client(port, tmp_path, one) for one in range(small.CLIENTS)]):
                assert await coordinate(small.task(settings), out, rows.append, url)
        return rows

    rows = asyncio.run(deploy())
    sampler = UniformSampler(small.CLIENTS, small.CLIENTS, settings.seed)
    expected = simulate(settings, sampler, tmp_path / "simulation")
    found = jax.tree_util.tree_leaves(final_parameters(out, True))
    for a, b in zip(found, jax.tree_util.tree_leaves(expected.state.params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert [row["clients"] for row in rows] == [small.CLIENTS] * 2
    assert rows[-1]["steps"] == expected.cohort.steps
    assert rows[-1]["bytes_up"] == expected.cohort.bytes_up
