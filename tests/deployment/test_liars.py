"""What a client that lies does to a run: it is bounded, whatever the client sends and says."""

import asyncio
import json

import jax
import numpy as np
import pytest

from fedlm.clients.device.dialling import dialling
from fedlm.clients.device.jax_trainer import JaxTrainer
from fedlm.fedlm_client.client import Client
from fedlm.fl_core.updates.compressors import compress_update
from fedlm.fl_core.updates.update_bytes import pack_update
from tests.deployment import small_deployment as small
from tests.deployment.plain_loop import final_parameters
from tests.deployment.test_resumed_training import go_on

COHORT = {"cohort_size": 8, "minimum_reports": 8, "over_selection": 1.0, "rounds": 4, "upload_bits": 32}


class Liar(JaxTrainer):
    """Sends an update of any size in place of its own, and claims as many examples as the server lets it."""

    def __init__(self, size, *arguments):
        super().__init__(*arguments)
        self._size = size

    def _train(self, of_round, content):
        report = super()._train(of_round, content)
        program = self._warm.runs
        like = jax.eval_shape(program.model.init, jax.random.key(0))
        update = jax.tree_util.tree_map(lambda leaf: np.full(leaf.shape, self._size, np.float32), like)
        compressed = compress_update(program.compressor, jax.random.key(0), update)
        return report._replace(upload=pack_update(program.compressor, compressed, update), num_examples=10_000_000)


def run(out, texts, liars):
    """Run a deployment of so many liars among eight clients; returns its rows and how far the model went."""
    bounds = {"server_optimizer": "fedavg", "server_learning_rate": 1.0}
    settings = small.deployment(**COHORT, **bounds)

    async def go():
        server = small.Server(small.task(settings), out)
        async with asyncio.timeout(small.PATIENCE), server:
            dial_as = dialling(f"127.0.0.1:{server.port}", None)
            clients = [small.make_client(server.port, texts, one) for one in range(liars, 8)]
            clients += [
                Client(
                    lambda one=one: dial_as(f"client{one}"),
                    Liar(1e15, small.store_of(texts, one), small.read_vocabulary, small.ALLOWED),
                    limits=small.IMPATIENT,
                )
                for one in range(liars)
            ]
            async with small.running(clients):
                assert await server.over
        return server.rows

    rows = asyncio.run(go())
    params = final_parameters(out, False)
    assert "diverged" not in json.loads((out / "summary.json").read_text())["status"]
    return rows, float(np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree_util.tree_leaves(params))))


@pytest.mark.long
def test_one_upload_does_not_ruin_a_run_with_default_bounds(tmp_path):
    honest, far = run(tmp_path / "honest", tmp_path, 0)
    rows, found = run(tmp_path / "lied to", tmp_path, 1)
    assert found < far + 4 * honest[-1]["update_norm_bound"]
    assert rows[-1]["train_loss"] < honest[-1]["train_loss"] + 0.5
    assert rows[-1]["clients_clipped"] >= 1


def test_doing_without_a_bound_is_said(tmp_path, caplog):
    with caplog.at_level("WARNING", logger="fedlm"):
        go_on(tmp_path, small.deployment(rounds=1, update_norm_bound="none"))
    assert "updates_not_bounded" in caplog.text
