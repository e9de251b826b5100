"""The engine is held to the plain loop over clients, whose every update goes through real bytes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.clients.device.local_training import ClientProgram
from fedlm.fl_core.exact_sums import SAFETY, as_float64, grid_step, number_of_coordinates
from fedlm.fl_core.rounds.aggregation import AggregationRules
from fedlm.fl_core.rounds.local_sgd import LocalTraining
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.fl_core.updates.registry import make_compressor
from fedlm.models.base import Model
from fedlm.models.layers.dropout import with_dropout
from fedlm.models.registry import MODELS
from fedlm.simulations.data.federated_data import InMemoryData
from fedlm.simulations.engine import cohort_engine
from fedlm.simulations.engine.cohort_engine import ClientWork, CohortEngine
from fedlm.simulations.engine.lanes import lane_chunks
from tests.clients.in_process import InProcessRunner
from tests.deployment.small_deployment import BigramConfig, bigram

VOCABULARY, LENGTH = 40, 6
SIZES = (1, 3, 4, 0, 9, 1, 25, 2, 60, 5, 1, 12)
SMALL = {"vocabulary_size": VOCABULARY, "embedding": 16, "hidden": 20, "layers": 1, "heads": 2, "mlp": 24}
TRAINING = LocalTraining(batch_size=4, max_batches=6)
RULES = AggregationRules()


def small(name):
    build, config = MODELS[name]
    sizes = {field.name: SMALL[field.name] for field in dataclasses.fields(config) if field.name in SMALL}
    return build(name, dataclasses.replace(config, **sizes))


MODEL = bigram("small", BigramConfig(vocabulary_size=VOCABULARY, embedding=16))
FAMILIES = ("cifg_tiny", "si_transformer_tiny")


def ragged_data(sizes=SIZES):
    rng = np.random.default_rng(0)
    clients = []
    for size in sizes:
        tokens = rng.integers(2, VOCABULARY, (size, LENGTH + 1))
        tokens[np.arange(LENGTH + 1) > rng.integers(1, LENGTH + 1, (size, 1))] = 0
        clients.append(tokens.astype(np.int32))
    return InMemoryData(clients)


def plan_of(clients, round_number=0, learning_rate=0.3):
    return RoundPlan(round_number, np.asarray(clients), seed=5, learning_rate=learning_rate)


def run_engine(
    model,
    training=TRAINING,
    compression="float32",
    rules=RULES,
    devices=1,
    lanes=1,
    plan=None,
    data=None,
    clip_norm=None,
):
    data = data or ragged_data()
    engine = CohortEngine(
        ClientWork(model, training, make_compressor(compression), rules),
        data,
        LENGTH,
        devices=jax.devices()[:devices],
        lanes_per_device=lanes,
        steps_per_chunk=5,
    )
    return engine.run(model.init(jax.random.key(1)), plan or plan_of(range(len(data.num_examples))), clip_norm)


def run_loop(model, training=TRAINING, compression="float32", rules=RULES, data=None, clip_norm=None):
    data = data or ragged_data()
    loop = InProcessRunner(ClientProgram(model, training, make_compressor(compression)), rules, data.sequences)
    return loop.run(model.init(jax.random.key(1)), plan_of(range(len(data.num_examples))), clip_norm)


def run_both(model, devices=1, lanes=1, **same):
    return run_engine(model, devices=devices, lanes=lanes, **same), run_loop(model, **same)


def assert_same(found, expected, tolerance):
    assert found[1:] == expected[1:]
    for a, b in zip(*map(jax.tree_util.tree_leaves, (found.aggregate, expected.aggregate)), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_models_of_each_family_match_the_plain_loop(name):
    assert_same(*run_both(small(name)), tolerance=2e-4)


@pytest.fixture(scope="module")
def looped():
    """What the plain loop makes of all clients."""
    return run_loop(MODEL)


@pytest.mark.long
@pytest.mark.parametrize(("devices", "lanes"), [(1, 9), (4, 3)])
def test_devices_and_lanes_do_not_change_the_result(looped, devices, lanes):
    assert_same(run_engine(MODEL, devices=devices, lanes=lanes), looped, tolerance=1e-4)


@pytest.mark.long
def test_clients_of_all_lanes_that_end_at_one_step_count_once():
    # Nine lanes are gone through in five parts of two, so that the last part is filled up.
    assert_same(*run_both(MODEL, lanes=9, data=ragged_data([6] * 9)), tolerance=1e-4)


@pytest.mark.long
def test_an_exact_sum_has_the_same_bits_on_any_number_of_devices_and_in_one_loop_over_clients():
    rules = AggregationRules(weighting="uniform", exact=True)
    results = [run_engine(MODEL, rules=rules, devices=devices, clip_norm=0.2) for devices in (1, 4)]
    delta = results[0].aggregate.delta
    for other in results[1:]:
        for a, b in zip(*map(jax.tree_util.tree_leaves, (delta, other.aggregate.delta)), strict=True):
            np.testing.assert_array_equal(a, b)
    plain_rules = dataclasses.replace(rules, exact=False)
    plain = run_engine(MODEL, rules=plain_rules, devices=4, clip_norm=0.2 * SAFETY).aggregate.delta
    step = float(grid_step(jnp.float32(0.2), number_of_coordinates(plain)))
    with jax.enable_x64(True):
        values = as_float64(delta)
    for a, b in zip(*map(jax.tree_util.tree_leaves, (values, plain)), strict=True):
        np.testing.assert_allclose(np.asarray(a) * step, b, atol=(len(SIZES) + 1) * step + 1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {
            "training": LocalTraining(batch_size=4, epochs=3, max_batches=7),
            "rules": AggregationRules(weighting="uniform"),
            "clip_norm": 0.2,
        },
        {
            "training": LocalTraining(batch_size=7, max_batches=1, gradient_clip=0.1),
            "rules": AggregationRules(weighting="uniform"),
        },
        {"training": LocalTraining(batch_size=4, epochs=2, max_examples=7, cap_order="cap_then_shuffle")},
        {"training": LocalTraining(3, epochs=3, max_batches=5, max_examples=4, batches_across_epochs=True)},
    ],
    ids=[
        "epochs and update clip",
        "one batch, gradient clip and uniform",
        "cap, then shuffle",
        "capped across epochs",
    ],
)
def test_every_setting_matches_the_plain_loop(changes):
    engine, loop = run_both(MODEL, lanes=2, devices=2, **changes)
    assert_same(engine, loop, tolerance=1e-4)
    if "clip_norm" in changes:
        assert float(engine.aggregate.clipped) > 0
    if cap := changes["training"].max_examples:
        # A client counts for the examples that its cap leaves.
        assert float(engine.aggregate.examples) == float(engine.aggregate.weight) == sum(min(n, cap) for n in SIZES)


@pytest.mark.long
def test_what_clients_drop_is_the_same_as_in_the_plain_loop():
    model = with_dropout(small("gru4rec_tiny"), 0.4)
    training = dataclasses.replace(TRAINING, draws_dropout=True)
    engine, loop = run_both(model, training=training, devices=2, lanes=2)
    assert_same(engine, loop, tolerance=2e-4)
    without = run_engine(model, devices=2, lanes=2)
    assert float(without.aggregate.training.loss) != pytest.approx(float(engine.aggregate.training.loss), rel=1e-4)


@pytest.mark.long
def test_uploads_of_factors_match_those_of_the_plain_loop():
    assert_same(*run_both(MODEL, compression="powersgd2", devices=2, lanes=2), tolerance=2e-4)


@pytest.mark.long
def test_quantized_uploads_match_the_bytes_of_the_plain_loop():
    """A float32 difference in the last bit may move a value to the neighbouring code, so few may differ by a step."""
    engine, loop = run_both(MODEL, compression="uniform8")
    assert engine[1:] == loop[1:]
    different = total = 0
    pairs = map(jax.tree_util.tree_leaves, (engine.aggregate.delta, loop.aggregate.delta))
    for a, b in zip(*pairs, strict=True):
        gap = np.abs(np.asarray(a) - np.asarray(b))
        different += int(np.sum(gap > 1e-4 * np.abs(b).max()))
        total += gap.size
    assert different < 0.01 * total


def test_a_cohort_of_clients_without_examples_is_an_empty_aggregate():
    # The one client is there without examples.
    engine = run_engine(MODEL, plan=plan_of([3]))
    assert_same(engine, run_loop(MODEL, data=InMemoryData([np.zeros((0, LENGTH + 1), np.int32)])), tolerance=0)
    assert float(engine.aggregate.clients) == 0
    assert engine.steps == engine.bytes_up == 0
    assert engine.bytes_down > 0


@pytest.mark.long
def test_nothing_is_compiled_again_when_cohorts_differ():
    data = ragged_data()
    engine = CohortEngine(
        ClientWork(MODEL, LocalTraining(batch_size=3), make_compressor("uniform8"), AggregationRules()),
        data,
        LENGTH,
        lanes_per_device=2,
    )
    params = MODEL.init(jax.random.key(0))
    before = cohort_engine._run_chunk._cache_size()
    for round_number, clients in enumerate([[0, 1], [6, 8, 9, 11, 4], [2], range(12), [3, 5]]):
        engine.run(params, plan_of(clients, round_number, learning_rate=0.1 * (round_number + 1)))
    assert cohort_engine._run_chunk._cache_size() == before + 1


def test_no_array_of_the_program_has_an_axis_of_clients():
    data = ragged_data((4,) * 400)
    engine = CohortEngine(ClientWork(MODEL, TRAINING, make_compressor("uniform8"), AggregationRules()), data, LENGTH)
    shapes = {
        tuple(leaf.shape for leaf in jax.tree_util.tree_leaves(chunk))
        for cohort in (2, 400)
        for chunk in lane_chunks(data, plan_of(range(cohort)), TRAINING, engine._shape)
    }
    assert len(shapes) == 1


def exploding(model):
    """The model, but on token 7 its loss, and so its gradient, is not a number."""

    def loss(params, batch):
        sums = model.loss(params, batch)
        bad = jnp.any(batch.tokens == 7, axis=1)
        return sums._replace(loss=sums.loss * jnp.where(bad, jnp.nan, 1.0))

    return Model(model.name, model.vocabulary_size, model.init, model.apply, loss)


def test_updates_that_are_not_finite_are_dropped_and_counted():
    rng = np.random.default_rng(1)
    good = rng.integers(8, VOCABULARY, (5, LENGTH + 1)).astype(np.int32)
    bad = good.copy()
    bad[2, 3] = 7
    model = exploding(MODEL)
    options = {"compression": "uniform8", "data": InMemoryData([good, bad, good[:2]]), "lanes": 2}
    engine, loop = run_both(model, **options)
    assert_same(engine, loop, tolerance=1e-2)
    assert float(engine.aggregate.dropped) == 1
    assert float(engine.aggregate.clients) == 3
    only_good = run_engine(model, plan=plan_of([0, 2]), **options)
    np.testing.assert_allclose(engine.aggregate.weight, only_good.aggregate.weight)
    for leaf in jax.tree_util.tree_leaves(engine.aggregate):
        assert np.all(np.isfinite(leaf))


def test_the_announced_cohort_is_made_ready_and_gives_the_same():
    class Recorded(InMemoryData):
        fetched: list[int] = []  # noqa: RUF012

        def sequences(self, client, rows=None):
            self.fetched.append(client)
            return super().sequences(client, rows)

    data = ragged_data()
    recorded = Recorded([data.sequences(client) for client in range(len(SIZES))])
    work = ClientWork(MODEL, TRAINING, make_compressor("uniform8"), RULES)
    now, following = plan_of([0, 1, 2]), plan_of([4, 8, 10], round_number=1)
    params = MODEL.init(jax.random.key(1))
    engine = CohortEngine(work, recorded, LENGTH, devices=jax.devices()[:1])
    engine.announce(following)
    engine.run(params, now)
    engine._thread.submit(lambda: None).result()
    assert set(recorded.fetched) == {0, 1, 2, 4, 8, 10}
    fetched = len(recorded.fetched)
    ahead = engine.run(params, following)
    assert len(recorded.fetched) == fetched, "the cohort was made twice"
    alone = CohortEngine(work, data, LENGTH, devices=jax.devices()[:1]).run(params, following)
    jax.tree_util.tree_map(np.testing.assert_array_equal, ahead.aggregate, alone.aggregate)
