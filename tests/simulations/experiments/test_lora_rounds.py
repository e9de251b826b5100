"""Federated rounds in which adapters alone are trained and sent."""

import jax
import numpy as np
import pytest

import fedlm
from fedlm.clients.device.local_training import ClientProgram
from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.rounds.aggregation import AggregationRules
from fedlm.fl_core.rounds.local_sgd import LocalTraining
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.fl_core.runs.files.checkpoints import Checkpoints, parameters_digest
from fedlm.fl_core.updates.registry import make_compressor
from fedlm.fl_core.updates.update_bytes import upload_bytes
from fedlm.models.base import given_frozen, parameter_count
from fedlm.models.families.transformer import TransformerConfig, transformer
from fedlm.models.layers.lora import LoraConfig, lora_model
from fedlm.simulations.data.federated_data import InMemoryData
from fedlm.simulations.engine.cohort_engine import ClientWork, CohortEngine
from tests.clients.in_process import InProcessRunner
from tests.models.small_models import SMALL_MODELS, perturbed
from tests.simulations.experiments.own_experiments import PRIVATE

leaves = jax.tree_util.tree_leaves
MODEL = fedlm.named("small", fedlm.ModelEntry(transformer, TransformerConfig(layers=1, heads=1, embedding=4, mlp=6)))
SETTINGS = {"rounds": 4, "cohort_size": 5, "length": 6, "client_learning_rate": 0.5, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def base(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("base")
    return out, fedlm.simulate(model=MODEL, data=data, out=out, **SETTINGS)


@pytest.fixture(scope="module")
def run(data, base):
    def simulate(out, **changes):
        settings = SETTINGS | {"init_from": base[0], "lora_rank": 2, "upload_bits": 8} | changes
        return fedlm.simulate(model=MODEL, data=data, out=out, **settings)

    return simulate


def stored(out):
    with Checkpoints(out / "checkpoints") as checkpoints:
        return checkpoints.restore_arrays(checkpoints.latest_round())


@pytest.mark.long
def test_the_engine_does_what_clients_one_by_one_do():
    small = SMALL_MODELS["transformer_tiny"]
    model = lora_model(small.model, LoraConfig(2, 4.0, 0.3))
    adapters = perturbed(model.init(jax.random.key(0)))
    rng = np.random.default_rng(0)
    clients = InMemoryData([rng.integers(2, 50, (size, 7)).astype(np.int32) for size in (1, 7, 3, 0, 12, 2)])
    training = LocalTraining(batch_size=4, draws_dropout=True)
    compressor = make_compressor("uniform8")
    work = ClientWork(model, training, compressor, AggregationRules())
    lanes = {"devices": jax.devices()[:2], "lanes_per_device": 3, "steps_per_chunk": 5}
    engine = CohortEngine(work, clients, 6, **lanes, frozen=small.params)
    frozen = jax.tree_util.tree_map(np.asarray, small.params)
    alone = ClientProgram(given_frozen(model, jax.device_put(frozen)), training, compressor)
    plan = RoundPlan(0, np.arange(6), seed=5, learning_rate=0.3)
    found = engine.run(adapters, plan)
    expected = InProcessRunner(alone, AggregationRules(), clients.sequences).run(adapters, plan)
    assert found[1:] == expected[1:]
    for one, other in zip(*map(leaves, (found.aggregate, expected.aggregate)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert all(np.any(np.asarray(leaf)) for leaf in leaves(found.aggregate.delta))


@pytest.mark.long
def test_adapters_alone_travel_and_are_stored_and_released(run, base, tmp_path):
    found = run(tmp_path / "run", **PRIVATE)
    adapters = stored(tmp_path / "run")["server"]["params"]
    trained = sum(leaf.size for leaf in leaves(adapters))
    assert found.summary["trained_parameters"] == trained < found.summary["parameters"] == parameter_count(found.model)
    assert found.summary["parameters_sha256"] == parameters_digest(adapters)
    clients = sum(row["clients"] for row in found.rows)
    assert found.summary["bytes_up"] == clients * upload_bytes(make_compressor("uniform8"), adapters)
    assert found.summary["bytes_down"] < base[1].summary["bytes_down"]
    # The whole model is what others see: frozen tables, and matrices that have moved.
    before, after = base[1].params, found.params
    np.testing.assert_array_equal(before["embedding"]["table"], after["embedding"]["table"])
    assert found.summary["test_loss"] != base[1].summary["test_loss"]
    moved = [not np.array_equal(one, other) for one, other in zip(leaves(before), leaves(after), strict=True)]
    assert sum(moved) == len(leaves(adapters)) // 2
    release = PrivacyLedger(tmp_path / "run" / "privacy" / "ledger.jsonl").releases[-1]
    assert release.parameters == found.summary["parameters_sha256"]
    # The first parameters had no privacy, whatever the adapters have.
    assert found.privacy.startswith("NOT PRIVATE")
    assert found.summary["ancestry"][0]["command"] == "simulate"


@pytest.mark.long
def test_a_run_that_goes_on_drops_the_same_and_comes_to_the_same_adapters(run, tmp_path):
    drops = {"lora_dropout": 0.5}
    whole = run(tmp_path / "whole", **drops)
    run(tmp_path / "run", rounds=2, **drops)
    again = run(tmp_path / "run", **drops)
    assert again.summary["parameters_sha256"] == whole.summary["parameters_sha256"]
    # Read from the folder, the same.
    for one, other in zip(leaves(run(tmp_path / "run", **drops).params), leaves(whole.params), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
    with pytest.raises(CheckpointError, match="lora_rank was 2 and is now 1"):
        run(tmp_path / "run", **drops, lora_rank=1)
