"""Logits against the float64 NumPy reference, and the recurrence's gradient against one of an unrolled loop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.models.cifg import (
    CifgConfig,
    cifg,
    cifg_layer_norm,
    cifg_rms_norm,
    cifg_unit_rms,
    si_cifg,
    si_cifg_published,
    si_cifg_unit_rms,
)
from fedlm.models.gated_recurrence import GRU, LSTM, init_recurrent_layer, recurrent_layer
from fedlm.models.layer_norm_recurrence import init_layer_norm_cifg_layer, layer_norm_cifg_layer
from fedlm.models.layers import layer_norm, sinusoidal_positions
from fedlm.models.recurrent import cifg_layer, init_cifg_layer
from fedlm.models.recurrent_recommenders import RecurrentRecommenderConfig, gru4rec, lstm4rec
from fedlm.models.sasrec import SasRecConfig, sasrec
from fedlm.models.scale_invariant import si_sigmoid, si_tanh
from fedlm.models.transformer import (
    TransformerConfig,
    si_transformer,
    si_transformer_rms_norm,
    transformer,
    transformer_rms_norm,
)
from tests.models import numpy_reference as reference
from tests.models.small_models import perturbed, random_batch

SIZES = CifgConfig(vocabulary_size=29, embedding=10, hidden=14)
UNTIED = CifgConfig(vocabulary_size=29, embedding=10, hidden=14, tied=False)
BLOCKS = TransformerConfig(vocabulary_size=29, layers=2, heads=3, embedding=12, mlp=20)
SI_CIFG = {"gate": reference.si_sigmoid, "cell": reference.si_tanh}
UNIT_RMS = {"final": lambda params, h: reference.unit_rms(h)}
RMS_NORM = {"final": lambda params, h: reference.rms_norm(params["output_norm"], h)}
STACKED = RecurrentRecommenderConfig(vocabulary_size=29, layers=2, embedding=10, hidden=7)
UNTIED_RECURRENT = RecurrentRecommenderConfig(vocabulary_size=29, embedding=10, hidden=14, tied=False)
SASREC = SasRecConfig(vocabulary_size=29, embedding=12, mlp=20, max_length=9)
UNTIED_SASREC = SasRecConfig(vocabulary_size=29, heads=3, embedding=12, mlp=12, max_length=6, tied=False)
ARCHITECTURES = {
    "cifg": (cifg, SIZES, reference.cifg_logits),
    "untied cifg": (cifg, UNTIED, reference.cifg_logits),
    "si_cifg": (si_cifg, SIZES, functools.partial(reference.cifg_logits, **SI_CIFG, **RMS_NORM)),
    "si_cifg_published": (si_cifg_published, SIZES, functools.partial(reference.cifg_logits, **SI_CIFG)),
    "si_cifg_unit_rms": (si_cifg_unit_rms, SIZES, functools.partial(reference.cifg_logits, **SI_CIFG, **UNIT_RMS)),
    "cifg_unit_rms": (cifg_unit_rms, SIZES, functools.partial(reference.cifg_logits, **UNIT_RMS)),
    "cifg_rms_norm": (cifg_rms_norm, SIZES, functools.partial(reference.cifg_logits, **RMS_NORM)),
    "cifg_layer_norm": (cifg_layer_norm, SIZES, reference.layer_norm_cifg_logits),
    "transformer": (transformer, BLOCKS, functools.partial(reference.transformer_logits, heads=3)),
    "si_transformer": (
        si_transformer,
        BLOCKS,
        functools.partial(reference.transformer_logits, heads=3, weights_of=reference.normalised_relu),
    ),
    "transformer_rms_norm": (
        transformer_rms_norm,
        BLOCKS,
        functools.partial(reference.transformer_logits, heads=3, final=reference.rms_norm),
    ),
    "si_transformer_rms_norm": (
        si_transformer_rms_norm,
        BLOCKS,
        functools.partial(
            reference.transformer_logits, heads=3, weights_of=reference.normalised_relu, final=reference.rms_norm
        ),
    ),
    "gru4rec": (
        gru4rec,
        UNTIED_RECURRENT,
        functools.partial(reference.recurrent_recommender_logits, layer=reference.gru),
    ),
    "stacked gru4rec": (
        gru4rec,
        STACKED,
        functools.partial(reference.recurrent_recommender_logits, layer=reference.gru),
    ),
    "lstm4rec": (
        lstm4rec,
        STACKED,
        functools.partial(reference.recurrent_recommender_logits, layer=reference.lstm),
    ),
    "sasrec": (sasrec, SASREC, functools.partial(reference.sasrec_logits, heads=1)),
    "untied sasrec": (sasrec, UNTIED_SASREC, functools.partial(reference.sasrec_logits, heads=3)),
}
by_architecture = pytest.mark.parametrize(
    ("build", "config", "expected"), ARCHITECTURES.values(), ids=ARCHITECTURES.keys()
)
# Words per example, and length: one position, one example, padded and cut examples.
by_shape = pytest.mark.parametrize(("words", "length"), [((5,), 1), ((9, 2, 0, 5), 6)], ids=["1x1", "4x6"])


def in_float64(tree):
    return jax.tree_util.tree_map(lambda leaf: np.asarray(leaf, np.float64), tree)


@functools.cache
def model_and_params(build, config):
    model = build("small", config)
    return model, perturbed(model.init(jax.random.key(3)))


@by_architecture
def test_logits_in_float32(build, config, expected):
    model, params = model_and_params(build, config)
    tokens = random_batch((9, 2, 0, 5), 6, config.vocabulary_size).tokens[:, :-1]
    logits = jax.jit(model.apply)(params, tokens)
    np.testing.assert_allclose(logits, expected(in_float64(params), np.asarray(tokens)), rtol=1e-4, atol=1e-5)


@by_shape
@by_architecture
def test_logits_in_float64(build, config, expected, words, length):
    model, params = model_and_params(build, config)
    tokens = random_batch(words, length, config.vocabulary_size).tokens[:, :-1]
    params = in_float64(params)
    with jax.enable_x64(True):
        logits = jax.jit(model.apply)(params, tokens)
        assert logits.dtype == jnp.float64
        np.testing.assert_allclose(logits, expected(params, np.asarray(tokens)), rtol=1e-10, atol=1e-10)


def test_positions():
    expected = [reference.position_encoding(position, 12) for position in range(40)]
    np.testing.assert_allclose(sinusoidal_positions(np.arange(40), 12), expected, rtol=1e-5, atol=1e-5)


def unrolled_cifg(params, x_bxtxe, gate, cell):
    hidden = params["projection"]["kernel"].shape[0]
    h, c = jnp.zeros_like(x_bxtxe[:, 0]), jnp.zeros((len(x_bxtxe), hidden), x_bxtxe.dtype)
    outputs = []
    for t in range(x_bxtxe.shape[1]):
        z = x_bxtxe[:, t] @ params["input"]["kernel"] + h @ params["recurrent"]["kernel"] + params["input"]["bias"]
        i, g, o = gate(z[:, :hidden]), cell(z[:, hidden : 2 * hidden]), gate(z[:, 2 * hidden :])
        c = (1 - i) * c + i * g
        h = (o * cell(c)) @ params["projection"]["kernel"]
        outputs.append(h)
    return jnp.stack(outputs, axis=1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("gate", "cell", "length"),
    [(jax.nn.sigmoid, jnp.tanh, 1), (jax.nn.sigmoid, jnp.tanh, 4), (si_sigmoid, si_tanh, 4)],
    ids=["cifg-1", "cifg-4", "si_cifg-4"],
)
@pytest.mark.parametrize("unroll", [1, 3])
def test_gradients_of_the_recurrence(gate, cell, length, unroll):
    rng = np.random.default_rng(0)
    params = in_float64(perturbed(init_cifg_layer(jax.random.key(0), 5, 7)))
    x, weights = rng.normal(size=(2, 3, length, 5))
    with jax.enable_x64(True):

        def gradients(layer):
            return jax.jit(jax.grad(lambda p, x: jnp.sum(layer(p, x, gate, cell) * weights), argnums=(0, 1)))

        layers = functools.partial(cifg_layer, unroll=unroll), unrolled_cifg
        found, expected = (gradients(layer)(params, x) for layer in layers)
        jax.tree_util.tree_map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), found, expected)


def unrolled_layer_norm_cifg(params, x_bxtxe):
    hidden = params["projection"]["kernel"].shape[0]
    h, c = jnp.zeros_like(x_bxtxe[:, 0]), jnp.zeros((len(x_bxtxe), hidden), x_bxtxe.dtype)
    outputs = []
    for t in range(x_bxtxe.shape[1]):
        z = x_bxtxe[:, t] @ params["input"]["kernel"] + h @ params["recurrent"]["kernel"]
        norms = params["gate_norm"]
        i, g, o = (
            layer_norm({name: numbers[gate] for name, numbers in norms.items()}, z[:, gate])
            for gate in (slice(start, start + hidden) for start in range(0, 3 * hidden, hidden))
        )
        c = (1 - jax.nn.sigmoid(i)) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = (jax.nn.sigmoid(o) * jnp.tanh(layer_norm(params["cell_norm"], c))) @ params["projection"]["kernel"]
        outputs.append(h)
    return jnp.stack(outputs, axis=1)


@pytest.mark.long
def test_gradients_of_the_layer_normalised_recurrence():
    rng = np.random.default_rng(0)
    params = in_float64(perturbed(init_layer_norm_cifg_layer(jax.random.key(0), 5, 7)))
    x, weights = rng.normal(size=(2, 3, 4, 5))
    with jax.enable_x64(True):
        found, expected = (
            jax.jit(jax.grad(lambda p, x, layer=layer: jnp.sum(layer(p, x) * weights), argnums=(0, 1)))(params, x)
            for layer in (functools.partial(layer_norm_cifg_layer, unroll=3), unrolled_layer_norm_cifg)
        )
        jax.tree_util.tree_map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10), found, expected)


def unrolled(advance):
    """A layer's outputs one after another, differentiated through the whole."""

    def run(params, x_bxtxi):
        kernel = params["recurrent"]["kernel"]
        h = c = jnp.zeros((len(x_bxtxi), kernel.shape[0]), x_bxtxi.dtype)
        outputs = []
        for t in range(x_bxtxi.shape[1]):
            z = x_bxtxi[:, t] @ params["input"]["kernel"] + params["input"]["bias"]
            h, c = advance(z, h @ kernel, h, c)
            outputs.append(h)
        return jnp.stack(outputs, axis=1)

    return run


def gru_step(z, u, h, c):
    (r, z, n), (u_r, u_z, u_n) = jnp.split(z, 3, axis=-1), jnp.split(u, 3, axis=-1)
    kept = jax.nn.sigmoid(z + u_z)
    return (1 - kept) * jnp.tanh(n + jax.nn.sigmoid(r + u_r) * u_n) + kept * h, c


def lstm_step(z, u, h, c):
    i, f, g, o = jnp.split(z + u, 4, axis=-1)
    c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


@pytest.mark.long
@pytest.mark.parametrize(("cell", "advance"), [(GRU, gru_step), (LSTM, lstm_step)], ids=["gru", "lstm"])
@pytest.mark.parametrize(("length", "unroll"), [(1, 1), (4, 3)])
def test_gradients_of_gated_recurrences(cell, advance, length, unroll):
    rng = np.random.default_rng(0)
    params = in_float64(perturbed(init_recurrent_layer(cell, jax.random.key(0), 5, 7)))
    x, weights = rng.normal(size=(3, length, 5)), rng.normal(size=(3, length, 7))
    with jax.enable_x64(True):

        def gradients(layer):
            return jax.jit(jax.grad(lambda p, x: jnp.sum(layer(p, x) * weights), argnums=(0, 1)))

        layers = functools.partial(recurrent_layer, cell, unroll=unroll), unrolled(advance)
        found, expected = (gradients(layer)(params, x) for layer in layers)
        jax.tree_util.tree_map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), found, expected)
