"""Programs of plans as models of LiteRT: they compute what JAX does, by built-in operations alone."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.extend.mlir import ir

from fedlm.fl_core.deployment.plans.litert.graph import Graph, Signature, Tensor, write_model
from fedlm.fl_core.deployment.plans.litert.lowering import lower
from fedlm.fl_core.deployment.plans.plan import model_of_clients
from fedlm.fl_core.deployment.plans.programs import read_program
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.randomness import device_key
from fedlm.models.special_tokens import PAD_ID
from tests.support import plans

interpreting = pytest.importorskip(
    "ai_edge_litert.interpreter", reason="ai-edge-litert is not installed; `make` installs it"
)

_rng = np.random.default_rng(0)
X = _rng.normal(size=(5, 7)).astype(np.float32)
Y = _rng.normal(size=(7, 3)).astype(np.float32)
B = _rng.normal(size=(2, 5, 3, 7)).astype(np.float32)
C = _rng.normal(size=(2, 7, 3, 4)).astype(np.float32)
PLACES = np.array([[0, 4], [-9, 99], [2, 2]], np.int32)  # inside, and beyond both ends
WORD = np.uint32(4023456789)


def gather(fill):
    numbers = lax.GatherDimensionNumbers(offset_dims=(0,), collapsed_slice_dims=(1,), start_index_map=(1,))
    return lambda x, places: lax.gather(x, places[..., None], numbers, (5, 1), mode=fill)


def product(left, right):
    return lambda b, c: lax.dot_general(b, c, (left, right))


def stacked(x):
    return lax.scan(lambda h, row: (h * 0.5 + row, (h, row > h)), jnp.zeros(7), x)


CASES = {
    "sum, largest, all": (lambda x: (x.sum(0), x.max((0, 1)), (x > 0).all(1)), X),
    "broadcasts": (lambda x: jnp.where(x[:, :1] > 0, x, 2.0) + jnp.arange(7.0) * x[:1], X),
    "ranks beyond 4": (lambda b: jnp.where(b[None, ..., None] > 0, b[None, ..., None], jnp.arange(2.0)) + 1, B),
    "gather, clipped": (gather("clip"), X, PLACES),
    "gather, filled": (gather("fill"), X, PLACES),
    "gather by two indices": (lambda x, i: x[jnp.clip(i[:, 0], 0, 4), jnp.clip(i[:, 1], 0, 6)], X, PLACES),
    "take along an axis": (lambda x, i: jnp.take_along_axis(x, jnp.clip(i[:, :1].T, 0, 4), 0), X[:, :3], PLACES),
    "take along the last axis": (lambda x: jnp.take_along_axis(x, (x[..., :2] > 0).astype(jnp.int32), -1), B),
    "scatter": (lambda x, i: x.at[i].add(jnp.ones((3, 2, 7)), mode="drop"), X, PLACES),
    "scatter by two indices": (lambda x, i: x.at[i[:, 0], i[:, 1]].add(jnp.arange(3.0), mode="drop"), X, PLACES),
    "scatter into columns": (lambda x, i: x.at[:, i[:, 0]].add(x[:, :3], mode="drop"), X, PLACES),
    "product": (lambda x, y: (x @ y, y.T @ x.T, jnp.tensordot(x, y, 0)), X, Y),
    "product of batches": (product(((3,), (1,)), ((0, 2), (0, 2))), B, C),
    "product over two axes": (product(((2, 3), (2, 1)), ((), ())), B, C),
    "product with a vector": (lambda x: (x @ x[0], x[0] @ x.T, jnp.vdot(x[0], x[1])), X),
    "loop": (stacked, X),
    "derivative of a loop": (
        jax.grad(lambda x: sum(jnp.sum(one * 1.0) ** 2 for one in jax.tree.leaves(stacked(x)))),
        X,
    ),
    "slices": (
        lambda x: (x[::2, 1:6:3], lax.dynamic_slice(x, (4, 5), (3, 3)), lax.dynamic_update_slice(x, 0 * x[:2], (1, 0))),
        X,
    ),
    "results that are arguments or constants": (lambda x: (x, x, jnp.zeros(3), x.reshape(7, 5)), X),
    "padding": (lambda x: (jnp.pad(x, ((0, 2), (1, 0))), jnp.pad(x[0], 3, constant_values=5.0)), X),
    "not finite": (lambda x: jnp.isfinite(jnp.log(x) / 0), X),
    "words": (lambda s: tuple(jax.random.key_data(jax.random.split(device_key(s, "upload", 7)))), WORD),
    "bits of one key": (lambda s: jax.random.bits(jax.random.wrap_key_data(jnp.stack([s, s + 5])), (9,)), WORD),
    "many places": (lambda x: jnp.sum(jnp.arange(10_000) * x[0, 0]), np.ones_like(X)),
}


def in_litert(function, arguments):
    shapes = [jax.ShapeDtypeStruct(np.shape(one), one.dtype) for one in arguments]
    exported = export.export(jax.jit(function), platforms=("cpu",))(*shapes)
    graph, used = Graph(), exported.module_kept_var_idx
    inputs = {f"in{place}": Tensor(shapes[place].shape, shapes[place].dtype.name) for place in used}
    with ir.Context() as context:
        module = read_program(context, exported.mlir_module_serialized)
        outputs = {f"out{n}": one for n, one in enumerate(lower(module, graph, list(inputs.values())))}
    interpreter = interpreting.Interpreter(
        model_content=write_model({"run": Signature(inputs, outputs)}, "test"), num_threads=1
    )
    interpreter.allocate_tensors()
    made = interpreter.get_signature_runner("run")(**{f"in{place}": np.asarray(arguments[place]) for place in used})
    return [made[name] for name in outputs]


@pytest.mark.parametrize("name", CASES)
def test_a_function_comes_to_what_jax_computes(name):
    function, *arguments = CASES[name]
    expected = list(map(np.asarray, jax.tree.leaves(jax.jit(function)(*arguments))))
    for one, other in zip(in_litert(function, arguments), expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if other.dtype == np.float32:
            np.testing.assert_allclose(one, other, 1e-5, 1e-5)
        else:
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("model", [plans.BIGRAM, pytest.param("cifg_tiny", marks=pytest.mark.long)])
def test_a_prediction_is_that_of_the_model(model):
    plan, manifest = plans.plan_of(model=model, upload_bits=32)
    used = {name for one in json.loads(plan.manifest)["signatures"].values() for name in one["operations"]}
    assert not {name for name in used if name in ("CUSTOM", "DELEGATE") or name.startswith("STABLEHLO")}
    values, place, given = 0.1 * np.random.default_rng(3).normal(size=manifest.download_values), 0, {}
    for one in manifest.download:
        size = int(np.prod(one.shape))
        given[f"parameters/{one.name}"] = values[place : place + size].reshape(one.shape).astype(np.float32)
        place += size
    tokens = np.full((1, manifest.batches.length), PAD_ID, np.int32)
    tokens[0, :3] = [manifest.batches.bos, 7, 5]
    interpreter = interpreting.Interpreter(model_content=plan.model, num_threads=1)
    interpreter.allocate_tensors()
    made = interpreter.get_signature_runner("infer")(**given, tokens=tokens, count=np.array([3], np.int32))
    served, _ = model_of_clients(model, plans.VOCABULARY, plans.settings_of(upload_bits=32))
    structure = jax.tree.structure(jax.eval_shape(served.init, jax.random.key(0)))
    expected = served.apply(jax.tree.unflatten(structure, list(given.values())), jnp.array(tokens))[0, 2]
    np.testing.assert_allclose(made["logits"], expected, rtol=1e-4, atol=1e-6)


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
