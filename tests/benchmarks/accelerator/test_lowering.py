"""What is measured can be lowered for a GPU at full size, by the first half of the compiler, which needs none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from benchmarks.accelerator import cells
from benchmarks.accelerator.private_steps import build
from benchmarks.clipping.steps import LANES, Setting, draw_batch, step_over
from fedlm.fl_core.local_sgd import local_step
from fedlm.fl_core.privacy.noise_source import noise_from
from fedlm.models.base import Batch
from fedlm.models.precision import precision_scope, with_precision
from fedlm.models.registry import create_model

# How XLA is told: products in TensorFloat-32 are of HIGH precision, and in float32 of HIGHEST.
PRECISIONS = {"bfloat16": "DEFAULT", "tf32": "HIGH", "float32": "HIGHEST"}
STEPS = {cell.name: cell for cell in cells.full() if cell.group == cells.PRIVATE_STEPS}


def lowered(function, *arguments):
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


def assert_lowered_for(policy, text):
    assert f"precision = [{PRECISIONS[policy]}, {PRECISIONS[policy]}]" in text
    assert ("bf16" in text) == (policy == "bfloat16")


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *(("cifg_19m", policy) for policy in PRECISIONS),
        *(pytest.param("transformer_21m", policy, marks=pytest.mark.long) for policy in PRECISIONS),
    ],
)
def test_a_local_step_of_many_lanes(name, policy):
    model = with_precision(create_model(name), policy)
    params = jax.eval_shape(jax.vmap(model.init), jax.random.split(jax.random.key(0), 128))
    batch = Batch(jnp.ones((128, 10, 21), jnp.int32), jnp.ones((128, 10)))
    with precision_scope(policy):
        text = lowered(jax.vmap(lambda params, batch: local_step(model, params, batch, 0.1, None)[0]), params, batch)
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert products
    for line in products:
        assert_lowered_for(policy, line)


def lower_step(cell, monkeypatch):
    """Which form of a gradient is cheaper is asked of the platform, which is not there."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    asked = cell.arguments
    model = with_precision(build(asked["model"], asked["vocabulary"]), asked["precision"])
    params = jax.eval_shape(model.init, jax.random.key(0))
    batch = jax.eval_shape(lambda: draw_batch(model, asked["examples"], asked["length"]))
    mesh = Mesh(np.array(jax.local_devices()[:1]), LANES)
    with precision_scope(asked["precision"]):
        step = step_over(mesh, model, Setting(asked["kind"], asked["examples"], 1))
        assert_lowered_for(asked["precision"], lowered(step, params, batch))


@pytest.mark.long
def test_a_private_step(monkeypatch):
    lower_step(STEPS["cifg_19m, bfloat16, 1024 x 20, bookkeeping"], monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("kind", cells.OURS)
@pytest.mark.parametrize(
    "case",
    ["bert_base, tf32, 64 x 512", pytest.param("decoder_100m, bfloat16, 64 x 512", marks=pytest.mark.thorough)],
)
def test_a_large_private_step(case, kind, monkeypatch):
    lower_step(STEPS[f"{case}, {kind}"], monkeypatch)


def test_noise():
    like = {"x": np.zeros((20, 10), np.float32)}
    assert "f64" in lowered(lambda: noise_from(bytes(32), like)([(1.0, (0,)), (2.0, (1,))]))
