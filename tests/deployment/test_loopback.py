"""A deployment on loopback comes to what the plain loop over clients comes to."""

import asyncio
import json

import jax
import numpy as np
import pytest

from fedlm.clients.local_training import ClientProgram
from fedlm.fl_core.cohorts import UniformSampler
from fedlm.fl_core.compression.registry import COMPRESSIONS
from fedlm.fl_core.deployment.state.state import SeenClient
from fedlm.fl_core.deployment.state.state_sql import DATABASE_FILE, SqlState, sqlite_url
from fedlm.fl_core.deployment.transport.transports import TRANSPORTS
from fedlm.fl_core.privacy.private_cohorts import MinSeparationSampler
from fedlm.fl_core.privacy.private_plan import plan_aggregation
from fedlm.fl_core.randomness import device_key
from fedlm.fl_core.runs.checkpoints import Checkpoints
from fedlm.fl_core.runs.driver import Run
from fedlm.fl_core.runs.federated_training import FederatedTraining
from fedlm.fl_core.runs.identity import RunIdentity
from fedlm.fl_core.runs.private_releases import PrivacyTerms
from fedlm.fl_core.runs.round_rows import find_divergence
from fedlm.fl_core.runs.run_folder import RunFolder
from fedlm.fl_core.server_optimizers import init_server
from tests.clients.in_process import InProcessRunner
from tests.deployment import small_deployment as small


def simulate(settings, sampler, out):
    """The run as a simulation: the same round loop, noise and ledger with clients in this process."""
    model = small.task(settings).model
    program = ClientProgram(model, settings.training.local_training(), settings.training.compressor())
    runner = InProcessRunner(program, settings.aggregation_rules(), small.examples_of)
    fresh = init_server(settings.training.server_config(), model.init(device_key(settings.seed, "init")))
    aggregation = terms = None
    with RunFolder(out) as folder:
        if settings.privacy.is_private:
            bound = settings.participation
            clip, delta = settings.training.update_clip_norm, settings.privacy.delta
            aggregation = plan_aggregation(settings.privacy, settings.rounds, settings.cohort_size, clip, bound, delta)
            terms = PrivacyTerms(aggregation.plan, delta, settings.seed)
        run = Run(folder, RunIdentity("test", {}, {}), settings.rounds, 1, find_divergence, terms)
        training = FederatedTraining(run, settings.optimization(), fresh, aggregation)
        rows = []
        run.take(training.rounds(runner, sampler), rows.append)
        return training.server.params, rows[-1]


def register_clients(out):
    """Give the clients the numbers that the simulation knows them by."""
    out.mkdir()
    state = SqlState(sqlite_url(out / DATABASE_FILE))
    state.record_check_ins([SeenClient(one, f"client{one}", "", 1, 0.0) for one in range(small.CLIENTS)])
    state.close()


async def deploy(settings, sampler, out, folder, transport):
    server = small.Server(small.task(settings, sampler), out, transport=transport)
    async with asyncio.timeout(60), server:
        clients = [small.make_client(server.port, folder, one, transport=transport) for one in range(small.CLIENTS)]
        async with small.running(clients):
            assert await server.over
    return server.rows


def final_parameters(out, private):
    with Checkpoints(out / "checkpoints") as checkpoints:
        arrays = checkpoints.restore_arrays(checkpoints.latest_round())
    return (arrays["server"] if private else arrays)["params"]


def compare(settings, sampler, tmp_path, transport, tolerance):
    register_clients(tmp_path / "run")
    rows = asyncio.run(deploy(settings, sampler, tmp_path / "run", tmp_path, transport))
    params, expected = simulate(settings, sampler, tmp_path / "simulation")
    found = jax.tree_util.tree_leaves(final_parameters(tmp_path / "run", settings.privacy.is_private))
    for a, b in zip(found, jax.tree_util.tree_leaves(params), strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance)
    assert [row["clients"] for row in rows] == [settings.cohort_size] * settings.rounds
    assert (rows[-1]["steps"], rows[-1]["bytes_up"]) == (expected["steps"], expected["bytes_up"])
    np.testing.assert_allclose(rows[-1]["train_loss"], expected["train_loss"], rtol=1e-5)
    return rows


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_private_deployment_equals_its_simulation(tmp_path, transport):
    settings = small.deployment(**small.PRIVACY, rounds=5, upload_bits=32)
    sampler = MinSeparationSampler(small.CLIENTS, settings.cohort_size, settings.seed, settings.participation)
    rows = compare(settings, sampler, tmp_path, transport, tolerance=1e-6)
    assert 0 < sum(row["clients_clipped"] for row in rows) < sum(row["clients"] for row in rows)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["privacy"].startswith("NOT PRIVATE: the noise follows from the experiment's seed")


# One compression of each scheme over one transport, and the usual one over all.
COMPRESSED = {(compressor.scheme.number, "grpc"): name for name, compressor in reversed(COMPRESSIONS.items())}


@pytest.mark.parametrize(
    ("compression", "transport"),
    [("uniform8", transport) for transport in TRANSPORTS] + [(name, one) for (_, one), name in COMPRESSED.items()],
)
def test_a_deployment_with_compressed_uploads_equals_its_simulation(tmp_path, compression, transport):
    settings = small.deployment(compression=compression)
    sampler = UniformSampler(small.CLIENTS, settings.cohort_size, settings.seed)
    # A difference in the last bit may move a value to the neighbouring code.
    bits = settings.training.compressor().scheme.settings.get("bits")
    compare(settings, sampler, tmp_path, transport, tolerance=0.05 / (2**bits - 1) if bits else 1e-5)
