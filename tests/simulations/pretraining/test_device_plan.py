import jax
import jax.numpy as jnp
import optax
import pytest

from fedlm.fl_core.clipping.methods import Clipping
from fedlm.fl_core.rounds.aggregation import NORM_BINS
from fedlm.models.base import language_model, parameter_count
from fedlm.models.layers.basic import dense, embed, init_dense, init_embedding, logits_from_table
from fedlm.simulations.pretraining import device_plan
from fedlm.simulations.pretraining.device_plan import plan_step
from fedlm.simulations.pretraining.microbatches import BatchTotals, StepRules
from fedlm.simulations.pretraining.trainer import MICROBATCHES, Trainer

VOCABULARY, WIDTH, LENGTH, MICROBATCH = 64, 8, 6, 2
ODD = 3
"""Numbers of a parameter that no devices divide."""


def model():
    def init(rng):
        return {"table": init_embedding(rng, VOCABULARY, WIDTH), "dense": init_dense(rng, WIDTH, WIDTH, bias=False),
                "odd": jnp.zeros(ODD)}  # fmt: skip

    def apply(params, tokens):
        x = jnp.tanh(dense(params["dense"], embed(params["table"], tokens)))
        return logits_from_table(params["table"], None, x) + params["odd"].sum()

    return language_model("small", VOCABULARY, init, apply)


def trainer(devices, sharding, private, batch_size=40):
    clipping = Clipping("vmap", 1.0) if private else None
    rules = StepRules(clipping, float(private), batch_size, MICROBATCH)
    return Trainer(model(), optax.adam(1e-3), rules, sharding, devices=jax.devices()[:devices])


@pytest.mark.long
@pytest.mark.parametrize(
    ("devices", "sharding", "private"), [(1, "data", False), (2, "data", True), (4, "full", False), (4, "full", True)]
)
def test_memory_of_arguments_is_that_of_the_parts_of_the_state(devices, sharding, private):
    plan = plan_step(trainer(devices, sharding, private), 1, LENGTH)
    parts = devices if sharding == "full" else 1
    numbers = (parameter_count(model()) - ODD) // parts + ODD
    assert plan.kept == {
        "parameters": 4 * numbers,
        "optimizer": 8 * numbers + 4,
        "noise state": 0,
        "sums": (8 if private else 4) * numbers,
        "noise": 8 * numbers * private,
        "frozen": 0,
    }
    phases = {phase.name: phase for phase in plan.phases}
    assert list(phases) == (["chunk", "noise", "release", "update"] if private else ["chunk", "update"])
    # Tokens and weights of a device, and counters beside the gradient.
    chunk = MICROBATCHES * MICROBATCH * (LENGTH + 2) * 4
    least = plan.kept["parameters"] + plan.kept["sums"] + chunk
    assert 0 <= phases["chunk"].needs.arguments - least < 1000
    if private:
        assert phases["release"].needs.arguments == plan.kept["sums"] + plan.kept["noise"]
        assert phases["noise"].needs.outputs >= plan.kept["noise"]
    assert plan.memory == max(phase.memory for phase in plan.phases)
    assert plan.memory > sum(plan.kept.values())
    assert (plan.exchanged > 0) == (devices > 1)
    if private and sharding == "data":
        # Bands are kept from step to step.
        bands = plan_step(trainer(devices, sharding, private), 1, LENGTH, bands=3)
        assert bands.kept["noise state"] == bands.memory - plan.memory == 2 * 8 * parameter_count(model())


@pytest.mark.long
def test_what_is_exchanged_grows_with_the_microbatches_of_a_batch():
    one, two, many = (plan_step(trainer(2, "full", False, batch), 1, LENGTH) for batch in (4, 8, 64))
    assert [plan.microbatches for plan in (one, two, many)] == [1, 2, 16]
    assert [plan.chunks for plan in (one, two, many)] == [1, 1, 2]
    chunks = [plan.phases[0] for plan in (one, two, many)]
    needs = chunks[0].needs
    a_microbatch = (needs.exchanged_most - needs.exchanged_least) / MICROBATCHES
    assert a_microbatch > 0
    for chunk, plan in zip(chunks, (one, two, many), strict=True):
        assert chunk.exchanged == pytest.approx(plan.chunks * needs.exchanged_least + plan.microbatches * a_microbatch)


def test_plain_steps_with_the_whole_state_everywhere_exchange_the_gradient_once():
    plan = plan_step(trainer(4, "data", False), 1, LENGTH)
    sent = {phase.name: phase.exchanged for phase in plan.phases}
    assert sent["chunk"] == 0
    beside = NORM_BINS + len(BatchTotals._fields) - 2
    assert sent["update"] == 2 * 3 / 4 * 4 * (parameter_count(model()) + beside)


@pytest.mark.parametrize("private", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_spread_state_is_gathered_once_a_chunk_and_sums_are_scattered_once_a_microbatch(private):
    plan = plan_step(trainer(4, "full", private), 1, LENGTH)
    spread = parameter_count(model()) - ODD
    needs = plan.phases[0].needs
    of_a_sum = 8 if private else 4
    a_microbatch = (needs.exchanged_most - needs.exchanged_least) / MICROBATCHES
    beside = 4 * (NORM_BINS + len(BatchTotals._fields) - 2)
    gradient = 3 / 4 * of_a_sum * (spread + 2 * ODD)
    # Counts that are zero without privacy are not exchanged.
    assert gradient < a_microbatch <= gradient + 2 * 3 / 4 * beside
    assert 3 / 4 * 4 * spread <= needs.exchanged_least <= 3 / 4 * 4 * spread + MICROBATCHES * 2 * 4


@pytest.mark.long
def test_a_plan_is_made_once(tmp_path, monkeypatch):
    heard = []
    first = plan_step(trainer(2, "full", True), 1, LENGTH, cache=tmp_path, compiling=heard.append)
    assert heard == ["chunk", "noise", "release", "update"]

    def fail(*arguments):
        raise AssertionError

    monkeypatch.setattr(device_plan, "exchanged_bytes", fail)
    assert plan_step(trainer(2, "full", True), 1, LENGTH, cache=tmp_path, compiling=fail) == first
    with pytest.raises(AssertionError):
        plan_step(trainer(4, "full", True), 1, LENGTH, cache=tmp_path)
