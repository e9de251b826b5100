"""What published numbers are computed with: agreement of losses, counts of operations, sizes of states."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.accelerator.kernels import busy_of, operations_of
from benchmarks.accelerator.matrix_products import Product, products_of, total_bytes, total_flops
from benchmarks.accelerator.operations import operations
from benchmarks.deployment.waiting import round_of
from benchmarks.privacy.noise_cost import CONTESTANTS, plan_of, state_bytes
from benchmarks.privacy.round_cost import NOW, PLAIN, shares_of
from benchmarks.simulation.comparing import loss_disagreements
from benchmarks.simulation.peers.lstm import lstm
from fedlm.fl_core.privacy.mechanisms.registry import make_noise
from fedlm.fl_core.privacy.noise.noise_source import fresh_secret, noise_from


@pytest.mark.parametrize(
    ("after", "off"),
    [
        ({"engine": 8.0, "near": 8.01, "far": 8.1, "bare": None}, {"far": pytest.approx(0.1)}),
        ({"engine": 8.0, "broken": math.nan}, {"broken": pytest.approx(math.nan, nan_ok=True)}),
        ({"other": 8.0}, {}),
    ],
)
def test_losses_agree_where_they_change_alike(after, off):
    assert loss_disagreements(9.0, after, "engine") == off


def test_shares_of_privacy_are_of_rounds_with_the_same_training():
    times = {"round": 10.0, f"sum, {NOW}": 0.5, f"release, {NOW}": 0.5, f"sum, {PLAIN}": 0.5, f"release, {PLAIN}": 0.0}
    assert shares_of(times) == pytest.approx({NOW: 10.0, PLAIN: 100 * 0.5 / 9.5}, abs=0.01)


@pytest.mark.parametrize("name", CONTESTANTS)
def test_the_state_of_noise_is_never_larger_than_stated(name):
    like = {"x": np.zeros((4, 5), np.float32)}
    mechanism, draw = make_noise(plan_of(name)), noise_from(fresh_secret(), like)
    state, largest = mechanism.init(like), 0
    for _ in range(70):
        _, state = mechanism.next(state, draw)
        arrays = [leaf for leaf in jax.tree_util.tree_leaves(state) if getattr(leaf, "shape", ()) == (4, 5)]
        largest = max(largest, sum(leaf.nbytes for leaf in arrays))
    assert largest <= state_bytes(name, like)


def test_products_are_counted_by_shape_and_type_and_in_loops_as_often_as_these_run():
    def function(x, weights):
        def step(x, _):
            return x @ weights, None

        x = jax.lax.scan(step, x, None, length=7)[0]
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ weights @ weights, lambda x: x, x)

    products = products_of(jax.jit(function), jnp.ones((2, 3), jnp.bfloat16), jnp.ones((3, 3), jnp.bfloat16))
    assert products == {Product(2 * 2 * 3 * 3, 2 * (6 + 9 + 6), (2, 3), (3, 3), "ab,bd->ad"): 9}
    assert (total_flops(products), total_bytes(products)) == (9 * 36, 9 * 42)
    with pytest.raises(ValueError, match="unknown length"):
        products_of(lambda x: jax.lax.while_loop(lambda x: x[0, 0] > 0, lambda x: x @ x, x), jnp.ones((2, 2)))


def test_an_idle_device_and_the_parts_of_a_step_are_seen_in_its_streams_alone():
    def line(name, *events):
        made = [
            SimpleNamespace(start_ns=start, duration_ns=length, name=what, stats=[("hlo_op", operation)])
            for start, length, what, operation in events
        ]
        return SimpleNamespace(name=name, events=made)

    streams = [
        line("Stream #1(Compute)", (100, 10, "gemm", "dot.1"), (130, 20, "gemm", "dot.2")),
        line("Stream #2(Memcpy)", (105, 10, "copy", ""), (140, 5, "copy", "")),
        line("XLA Modules", (0, 1000, "everything", "")),
    ]
    host = SimpleNamespace(name="/host:CPU", lines=[line("python", (0, 1, "x", ""))])
    program = """
      %dot.1 = f32[4,8]{1,0} dot(%a, %b), metadata={op_name="jit(step)/norms/dot_general" source_line=3}
      ROOT dot.2 = bf16[4]{0} dot(%c, %d), metadata={op_name="jit(step)/transpose(jvp(head))/dot_general"}
    """
    found = busy_of([host, SimpleNamespace(name="/device:GPU:0", lines=streams)], operations_of(program))
    assert found["idle"] == pytest.approx(1 - 35 / 50)
    assert found["parts"] == pytest.approx({"norms": 10 / 45, "gradient": 20 / 45, "unknown": 15 / 45})
    assert [(one["operation"], one["makes"], one["runs"]) for one in found["longest"]][:2] == [
        ("dot.2", "bf16[4]", 1),
        ("", "", 2),
    ]
    assert "reason" in busy_of([host])


def test_waiting_for_all_gives_everybody_their_share_and_ending_at_the_goal_does_not():
    found = round_of(over_selection=1.3, drops=0.0, deadline=1e4, rounds=200)
    assert found["all"]["reports"] == 130
    assert found["goal"]["reports"] == 100
    # A fifth of 26,000 draws, five standard deviations wide, and 1.3 times as much.
    assert abs(found["all"]["quick"] - 0.2) < 0.0125
    assert abs(found["goal"]["quick"] - 0.26) < 0.016
    assert found["all"]["seconds"] > 2 * found["goal"]["seconds"]


@pytest.mark.long
def test_the_peers_lstm_computes_what_its_equations_say():
    model = lstm("small", 11, embedding=4, hidden=3)
    params = model.init(jax.random.key(0))
    tokens = np.array([[1, 5, 7], [2, 2, 10]])
    p = jax.tree_util.tree_map(lambda leaf: np.asarray(leaf, np.float64), params)
    h, c, outputs = np.zeros((2, 3)), np.zeros((2, 3)), []
    for t in range(3):
        x = p["embedding"]["table"][tokens[:, t]] * 2
        z = x @ p["input"]["kernel"] + p["input"]["bias"] + h @ p["recurrent"]["kernel"]
        i, f, g, o = np.split(z, 4, axis=-1)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        outputs.append(h @ p["projection"]["kernel"] @ p["embedding"]["table"].T + p["output_bias"])
    np.testing.assert_allclose(model.apply(params, jnp.asarray(tokens)), np.stack(outputs, axis=1), atol=1e-5)


def test_a_private_step_needs_what_a_plain_one_does_and_its_norms():
    counted = {
        kind: operations("transformer_tiny", kind, 4, 8, vocabulary=64, precision="float32")
        for kind in ("plain", "bookkeeping")
    }
    plain, private = (sum(parts.values()) for parts in counted.values())
    # In float32 no factor is two numbers; weighted sums of vectors are products, too.
    assert private - plain == pytest.approx(counted["bookkeeping"]["norms"], rel=0.01)
    assert counted["plain"]["norms"] == counted["plain"]["weighted_sums"] == 0 < counted["bookkeeping"]["norms"]
    assert 0 < counted["bookkeeping"]["weighted_sums"] < counted["bookkeeping"]["gradient"]
