"""What published numbers are computed with: ratios, fits, counts of operations, predictions."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.accelerator import goals, records
from benchmarks.accelerator.kernels import busy_of, operations_of
from benchmarks.accelerator.matrix_products import Product, products_of, total_bytes, total_flops
from benchmarks.accelerator.operations import operations
from benchmarks.accelerator.parity import relative_difference
from benchmarks.clipping.measurement import Candidate, Started, finalists, memory_limit, summarize, sweep
from benchmarks.deployment.waiting import round_of
from benchmarks.privacy.noise_cost import CONTESTANTS, plan_of, state_bytes
from benchmarks.privacy.round_cost import NOW, PLAIN, shares_of
from benchmarks.simulation.comparing import best_of, loss_disagreements, pass_ratios, spread
from benchmarks.simulation.peers.lstm import lstm
from benchmarks.simulation.profile_round import by_kind
from benchmarks.simulation.scaling import fit_line
from fedlm.fl_core.privacy.mechanisms.registry import make_noise
from fedlm.fl_core.privacy.noise.noise_source import fresh_secret, noise_from


@pytest.mark.parametrize(
    ("one", "other", "ratios"),
    [
        ([2.0, 8.0, 9.0], [1.0, 2.0, 3.0], (2.0, 3.0, 4.0)),
        ([2.0, 8.0], [1.0], (2.0, 2.0, 2.0)),
        ([2.0], [], None),
    ],
)
def test_ratios_are_taken_pass_by_pass_of_those_that_both_ran(one, other, ratios):
    assert pass_ratios(one, other) == ratios


def test_the_middle_is_the_median_and_the_best_has_the_highest():
    assert spread([3.0, 1.0, 2.0, 10.0]) == (1.0, 2.5, 10.0)
    rates = {"a": [1.0, 9.0, 1.0], "b": [2.0, 2.0, 2.0], "c": [5.0], "d": []}
    assert best_of(rates, ("a", "b", "d")) == "b"
    assert best_of(rates, ("d", "e")) is None


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


def test_a_line_through_points_that_lie_on_one():
    points = [{"steps": steps, "spread_of_seconds": [0.0, 0.5 + 0.01 * steps, 9.0]} for steps in (10, 50, 200)]
    line = fit_line(points)
    assert line == pytest.approx({"fixed_seconds": 0.5, "seconds_per_step": 0.01, "greatest_deviation": 0}, abs=1e-6)


def test_operations_are_told_apart_by_what_they_do_and_how_often():
    def operation(name, milliseconds):
        return {"ph": "X", "name": name, "dur": 1e3 * milliseconds}

    steps = 10
    events = [operation("ynn_fusion.3", 1.0)] * steps + [operation("dot.2", 0.1)] * 20 * steps
    events += [operation("transpose_copy_fusion", 0.5)] * steps + [operation("multiply_fusion", 2.0)] * 2
    events += [operation("while.5", 100.0), {"ph": "M", "name": "dot.2"}]
    assert by_kind(events, steps) == pytest.approx(
        {
            "matrix products, every time step or layer": 2.0,
            "matrix products, every local step": 1.0,
            "copies, every local step": 0.5,
            "elementwise and other, once a client": 0.4,
        }
    )


def candidate(kind, microbatch, seconds, **facts):
    return Candidate(kind, microbatch, 1, lambda: Started(lambda: seconds, facts))


def test_private_steps_are_compared_at_the_best_setting_of_each_kind():
    plain = sweep([candidate("plain", 1, 1.0, memory_mib=10.0), candidate("plain", 2, 1.2, memory_mib=20.0)])
    ghost = sweep([candidate("ghost", 2, 2.0, memory_mib=30.0)])
    seconds = {
        "plain, 1 at a time, 1 device": [2.0, 1.0, 1.0],
        "plain, 2 at a time, 1 device": [2.0, 2.0, 2.0],
        "ghost, 2 at a time, 1 device": [3.0, 3.0, 2.0],
    }
    summary = summarize([*plain, *ghost], seconds)
    assert summary["best"]["plain"]["microbatch"] == 1
    assert summary["over_plain"] == {"ghost": {"min": 1.5, "median": 2.0, "max": 3.0}}
    assert summary["memory_over_plain"] == {"ghost": {"best_settings": 3.0, "same_setting": 1.5}}


def test_a_private_step_keeps_to_the_memory_if_it_can():
    plain = sweep([candidate("plain", 1, 1.0, memory_mib=10.0)])
    large, small = candidate("bookkeeping", 4, 1.0, memory_mib=14.0), candidate("bookkeeping", 1, 1.5, memory_mib=12.0)
    for candidates, best in (([small, large], 1), ([large], 4)):
        assert finalists(sweep(candidates), memory_limit(plain))[0].candidate.microbatch == best


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


def measured(group, name, result):
    return {"kind": "cell", "group": group, "name": name, "status": "measured", "seconds": 1.0, "result": result}


def test_rounds_and_private_steps_are_held_to_goals(tmp_path):
    # A step: 3 products bound by arithmetic, 1 s each, one bound by memory, 2 s, and 5 bytes; a client: 10 bytes.
    a_round = {
        "products_a_step": [[100.0, 1.0, 3], [100.0, 20.0, 1]],
        "other_bytes_a_step": 5.0,
        "bytes_a_client": 10.0,
        "steps": 4,
        "clients": 2,
        "clients_per_second": 0.02,
        "devices": 1,
        "seconds": {"median": 100.0},
    }
    kinds = {"plain": 1.0, "ghost": 2.0, "bookkeeping": 1.2, "jax_privacy": 2.0}
    lines = [
        {"kind": "run", "started": "now", "rehearsal": False, "found": {"platform": "gpu", "device": "one"}},
        measured("peaks", "products", {"flops_per_second": dict.fromkeys(("bfloat16", "tf32", "float32"), 100.0)}),
        measured("peaks", "memory", {"bytes_per_second": 10.0}),
        measured("rounds", "cifg_19m, tf32, 1 lanes", a_round),
    ]
    for kind, seconds in kinds.items():
        a_step = {"parameters": 25_000_000, "seconds": {"median": seconds}, "tokens_per_second": 1 / seconds}
        a_step |= {"devices": 1, "model_flops_a_token": 50.0, "microbatch": 1, "planned_bytes": 1}
        lines.append(measured("private_steps", f"transformer_21m, bfloat16, 2 x 2, {kind}", a_step))
    for line in lines:
        records.append(tmp_path, line)
    results = records.read(tmp_path)
    assert goals.part_of_roofline(results, a_round, "tf32") == pytest.approx((4 * (3 + 2 + 0.5) + 2) / 100)
    found = {one.goal.partition(":")[0]: (one.measured, one.met) for one in goals.goals(results)}
    private = [one for goal, one in found.items() if goal.startswith("private")]
    assert next(iter(found.values()))[1] is False
    assert private == [
        ("83.3% (bookkeeping)", False),
        ("1.20 x (bookkeeping)", True),
        ("1.67 x (bookkeeping)", False),
    ]


def test_products_are_counted_by_shape_and_type_and_in_loops_as_often_as_these_run():
    def function(x, weights):
        def step(x, _):
            return x @ weights, None

        x = jax.lax.scan(step, x, None, length=7)[0]
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ weights @ weights, lambda x: x, x)

    products = products_of(jax.jit(function), jnp.ones((2, 3), jnp.bfloat16), jnp.ones((3, 3), jnp.bfloat16))
    assert products == {Product(2 * 2 * 3 * 3, 2 * (6 + 9 + 6)): 9}
    assert (total_flops(products), total_bytes(products)) == (9 * 36, 9 * 42)
    with pytest.raises(ValueError, match="unknown length"):
        products_of(lambda x: jax.lax.while_loop(lambda x: x[0, 0] > 0, lambda x: x @ x, x), jnp.ones((2, 2)))


def test_differences_are_relative_to_the_reference_and_infinite_where_values_are():
    reference = {"a": np.array([3.0, 4.0]), "b": np.zeros(2)}
    assert relative_difference({"a": np.array([3.0, 4.0]), "b": np.array([0.0, 0.5])}, reference) == 0.1
    assert relative_difference({"a": np.array([3.0, np.nan]), "b": np.zeros(2)}, reference) == math.inf


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
