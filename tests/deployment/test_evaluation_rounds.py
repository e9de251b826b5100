"""Evaluation rounds: devices score the model of an earlier run, train nothing, and only noised sums are told."""

import asyncio
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.clients.device.server_instructions import AllowedPrograms
from fedlm.models.base import Batch
from fedlm.models.registry import create_model
from tests.deployment import small_deployment as small
from tests.deployment.plain_loop import final_parameters

EVALUATE = {
    "client_algorithm": "evaluate",
    "evaluate_reference_loss": 4.0,
    "update_clip_norm": 1.0,
    "upload_bits": 32,
    "rounds": 1,
    "client_max_batches": 4,
    "server_optimizer": "fedavgm",
}
GAUSSIAN = {"privacy": "gaussian", "noise_multiplier": 1.0, "delta": 1e-3, "max_participations": 1}


async def deploy(settings, out):
    """Run a server, with eight clients, to its end; gives the rows and the summary."""
    (folder := out.with_suffix(".texts")).mkdir()
    server = small.Server(small.task(settings), out)
    allowed = AllowedPrograms((settings.model,), (settings.training.algorithm.client_algorithm,))
    async with asyncio.timeout(small.PATIENCE), server:
        clients = [small.make_client(server.port, folder, one, allowed=allowed) for one in range(8)]
        async with small.running(clients):
            assert await server.over
    return server.rows, json.loads((out / "summary.json").read_text())


@pytest.fixture
def trained(tmp_path):
    """The folder of a run that has trained a model."""
    asyncio.run(deploy(small.deployment(rounds=1), tmp_path / "trained"))
    return tmp_path / "trained"


def loss_on_device(params, client):
    """Mean loss of a token on a client's text, by one call of the model."""
    model, tokens = create_model(small.MODEL, small.VOCABULARY), small.examples_of(client)
    sums = model.loss(params, Batch(jnp.asarray(tokens), jnp.ones(len(tokens))))
    return float(np.asarray(sums.loss, np.float64).sum() / np.asarray(sums.tokens, np.float64).sum())


def test_devices_score_the_model_of_another_run_and_train_nothing(trained, tmp_path):
    settings = small.deployment(**EVALUATE, init_from=trained)
    (row,), summary = asyncio.run(deploy(settings, tmp_path / "run"))
    params = final_parameters(trained, private=False)
    assert jax.tree_util.tree_all(
        jax.tree_util.tree_map(np.array_equal, params, final_parameters(tmp_path / "run", private=False))
    )
    losses = [loss_on_device(params, client) for client in range(8)]
    found = summary["evaluation"]
    assert (found["devices"], found["noise"]) == (pytest.approx(8), 0)
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert found["below_reference"] == pytest.approx(np.mean(np.array(losses) < 4))
    assert found["loss_low"] < found["loss"] < found["loss_high"]
    assert summary["privacy"].startswith("NOT PRIVATE")
    # Of a device there came five numbers, and nothing of training.
    assert row["bytes_up"] < 8 * 200
    assert {row[name] for name in ("train_loss", "update_norm", "examples", "steps", "gradient_norm")} == {None}


def test_a_private_evaluation_tells_noised_sums_and_states_what_they_cost(trained, tmp_path):
    settings = small.deployment(**EVALUATE, **GAUSSIAN, init_from=trained, initial_data="public")
    rows, summary = asyncio.run(deploy(settings, tmp_path / "run"))
    print(json.dumps(summary, indent=1)[:6000], rows)
