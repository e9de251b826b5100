"""Plans as models of LiteRT: they train, send and predict as JAX does, by built-in operations alone."""

import json
import os
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import export, lax
from jax.extend.mlir import ir

from fedlm.fl_core.deployment.plans.litert.graph import Graph, Tensor
from fedlm.fl_core.deployment.plans.litert.lowering import lower
from fedlm.fl_core.deployment.plans.programs import read_program
from fedlm.fl_core.errors import ConfigurationError

ROOT = Path(__file__).parents[4]
PYTHON = ROOT / ".venv-litert/bin/python"


def run(script, *arguments):
    if not PYTHON.exists():
        pytest.skip("ai-edge-litert is not installed; `make litert` makes an environment with it")
    words = [PYTHON, ROOT / script, *arguments]
    done = subprocess.run(
        words, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.long
def test_functions_come_to_what_jax_computes():
    assert run("tests/fl_core/deployment/plans/litert_functions.py") == {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "rate", "settings"),
    [
        ("cifg_tiny", 0.5, {}),
        ("si_cifg_tiny", 0.5, {"upload_bits": 16}),
        ("transformer_tiny", 0.5, {"client_algorithm": "fedprox"}),
        # At 0.5 JAX alone parts by a hundredth of the update in six steps, if parameters are changed by 1e-7.
        ("si_transformer_tiny", 0.05, {"client_gradient_clip": 1.0}),
    ],
    ids=str,
)
def test_six_steps_an_upload_and_a_prediction_come_where_jax_comes(model, rate, settings):
    task = {"model": model, "vocabulary": 97, "steps": 6, "rate": rate, "settings": settings}
    found = run("benchmarks/devices/litert.py", json.dumps(task))
    assert max(found["update"], found["sums"], found["logits"]) < 1e-5
    used = {name for counts in found["operations"].values() for name in counts}
    assert not {name for name in used if name in ("CUSTOM", "DELEGATE") or name.startswith("STABLEHLO")}
    assert found["finite"] == 1
    codes = [one for one in found["upload"] if one[0].startswith("uint")]
    assert max(most for *_, most in codes) <= 1
    # Where rounding puts a value on the other side of a whole number, of which 16 bits have 256 times as many.
    share = 1e-4 if codes[0][0] == "uint8" else 1e-2
    assert sum(one[2] for one in codes) < share * sum(one[1] for one in codes)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: lax.while_loop(lambda y: jnp.sum(y) < 9, lambda y: y + 1, x), "turns as often as data says"),
        (lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x), "depends on data"),
        (lambda x: lax.dynamic_slice(x, (x[0].astype(int),), (2,)), "begins where data says"),
        (lambda x: x.at[x.astype(int)].multiply(2.0), "does something else than to add"),
        (jnp.sort, "is not among those that are translated"),
        (lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), "values of the type bf16"),
    ],
)
def test_what_built_in_operations_cannot_do_is_refused(function, why):
    exported = export.export(jax.jit(function), platforms=("cpu",))(jax.ShapeDtypeStruct((4,), jnp.float32))
    with ir.Context() as context, pytest.raises(ConfigurationError, match=why):
        lower(read_program(context, exported.mlir_module_serialized), Graph(), [Tensor((4,), "float32")])
