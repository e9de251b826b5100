"""A deployment on loopback comes to what the plain loop over clients comes to."""

import asyncio
import contextlib
import json

import jax
import numpy as np
import pytest

from fedlm.clients.device.server_instructions import AllowedPrograms
from fedlm.fl_core.deployment.state.state import SeenClient
from fedlm.fl_core.deployment.state.state_sql import DATABASE_FILE, SqlState, sqlite_url
from fedlm.fl_core.privacy.private_cohorts import MinSeparationSampler
from fedlm.fl_core.randomness import device_key
from fedlm.fl_core.rounds.cohorts import UniformSampler
from fedlm.fl_core.runs.run_folder import RunFolder
from fedlm.fl_core.updates.registry import COMPRESSIONS
from tests.deployment import small_deployment as small
from tests.deployment.plain_loop import final_parameters, simulate

OWN_ALGORITHM = "tests.support.own_algorithms:REMEMBERING"
FEW = {"cohort_size": 3, "minimum_reports": 3}
"""Each client compiles its training."""


def register_clients(out):
    """Give the clients the numbers that the simulation knows them by."""
    with RunFolder(out), contextlib.closing(SqlState(sqlite_url(out / DATABASE_FILE))) as state:
        state.record_check_ins([SeenClient(one, f"client{one}", "", 1, 0.0) for one in range(small.CLIENTS)])


async def deploy(settings, sampler, out, folder):
    server = small.Server(small.task(settings, sampler), out)
    algorithm = settings.training.algorithm.client_algorithm
    allowed = AllowedPrograms((settings.model,), (algorithm,))
    async with asyncio.timeout(small.PATIENCE), server:
        clients = [small.make_client(server.port, folder, one, allowed=allowed) for one in range(small.CLIENTS)]
        async with small.running(clients):
            assert await server.over
    return server.rows


def compare(settings, sampler, tmp_path, tolerance):
    register_clients(tmp_path / "run")
    rows = asyncio.run(deploy(settings, sampler, tmp_path / "run", tmp_path))
    params, expected = simulate(settings, sampler, tmp_path / "simulation")
    found = jax.tree_util.tree_leaves(final_parameters(tmp_path / "run", settings.privacy.is_private))
    for a, b in zip(found, jax.tree_util.tree_leaves(params), strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance)
    assert [row["clients"] for row in rows] == [settings.cohort_size] * settings.rounds
    assert (rows[-1]["steps"], rows[-1]["bytes_up"]) == (expected["steps"], expected["bytes_up"])
    np.testing.assert_allclose(rows[-1]["train_loss"], expected["train_loss"], rtol=1e-5)
    return rows


def test_a_private_deployment_equals_its_simulation(tmp_path):
    settings = small.deployment(**small.PRIVACY, rounds=3, upload_bits=32)
    sampler = MinSeparationSampler(small.CLIENTS, settings.cohort_size, settings.seed, settings.participation)
    rows = compare(settings, sampler, tmp_path, tolerance=1e-6)
    assert 0 < sum(row["clients_clipped"] for row in rows) < sum(row["clients"] for row in rows)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["privacy"].startswith("NOT PRIVATE: the noise follows from the experiment's seed")


OF_EACH_SCHEME = {compressor.scheme.number: name for name, compressor in reversed(COMPRESSIONS.items())}


@pytest.mark.long
@pytest.mark.parametrize("compression", OF_EACH_SCHEME.values())
def test_a_deployment_with_compressed_uploads_equals_its_simulation(tmp_path, compression):
    # Reports are added in the order in which they come. After a round, factors would make more of the last bits.
    rounds = 1 if compression.startswith("powersgd") else 3
    settings = small.deployment(**small.LINEAR, **FEW, compression=compression, rounds=rounds)
    sampler = UniformSampler(small.CLIENTS, settings.cohort_size, settings.seed)
    # A difference in the last bit may move a value to the neighbouring code.
    bits = settings.training.compressor().scheme.settings.get("bits")
    compare(settings, sampler, tmp_path, tolerance=0.2 / (2**bits - 1) if bits else 1e-6)


@pytest.mark.long
def test_a_deployment_of_a_client_algorithm_with_memory_equals_its_simulation(tmp_path):
    settings = small.deployment(**small.LINEAR, **FEW, client_algorithm=OWN_ALGORITHM, upload_bits=32, rounds=2)
    sampler = UniformSampler(small.CLIENTS, settings.cohort_size, settings.seed)
    compare(settings, sampler, tmp_path, tolerance=1e-5)


@pytest.mark.long
def test_a_deployment_with_layers_that_stay_on_devices_equals_its_simulation(tmp_path):
    settings = small.deployment(**small.PRIVACY, **FEW, personal_layers=("head",), upload_bits=32, rounds=4)
    sampler = MinSeparationSampler(small.CLIENTS, settings.cohort_size, settings.seed, settings.participation)
    rows = compare(settings, sampler, tmp_path, tolerance=1e-5)
    whole = 4 * 2 * small.VOCABULARY * 32
    assert rows[-1]["bytes_up"] < 0.55 * settings.cohort_size * whole
    stored = final_parameters(tmp_path / "run", private=True)
    first = small.task(settings).model.init(device_key(settings.seed, "init"))
    np.testing.assert_array_equal(stored["head"], first["head"])


@pytest.mark.long
def test_devices_drop_what_clients_of_the_simulation_drop(tmp_path):
    drops = {"model": "gru4rec_tiny", "dropout": 0.4}
    settings = small.deployment(**small.LINEAR, **FEW, **drops, upload_bits=32, rounds=1)
    sampler = UniformSampler(small.CLIENTS, settings.cohort_size, settings.seed)
    compare(settings, sampler, tmp_path, tolerance=1e-5)
