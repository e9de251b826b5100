"""Logits against the float64 NumPy reference; sequential recommenders are held to it in test_dropout.py."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.models.families.cifg import CifgConfig, cifg
from fedlm.models.families.transformer import TransformerConfig, transformer
from fedlm.models.layers.basic import sinusoidal_positions
from tests.models import numpy_reference as reference
from tests.models.small_models import perturbed, random_batch

SIZES = CifgConfig(vocabulary_size=29, embedding=10, hidden=14)
UNTIED = CifgConfig(vocabulary_size=29, embedding=10, hidden=14, tied=False, unroll=3)
BLOCKS = TransformerConfig(vocabulary_size=29, layers=2, heads=3, embedding=12, mlp=20)
SI_CIFG = {"gate": reference.si_sigmoid, "cell": reference.si_tanh}
UNIT_RMS = {"final": lambda params, h: reference.unit_rms(h)}
RMS_NORM = {"final": lambda params, h: reference.rms_norm(params["output_norm"], h)}
RMS_BLOCKS = {"final": reference.rms_norm}
SI = {"recurrence": "scale_invariant"}
SI_ATTENTION = {"attention": "scale_invariant"}
RELU = {"weights_of": reference.normalised_relu}
by_cifg = functools.partial(functools.partial, reference.cifg_logits)
by_transformer = functools.partial(functools.partial, reference.transformer_logits, heads=3)
VARIANTS = {
    "cifg": (cifg, SIZES, {}, by_cifg()),
    "untied cifg": (cifg, UNTIED, {}, by_cifg()),
    "cifg, unit_rms": (cifg, SIZES, {"output_norm": "unit_rms"}, by_cifg(**UNIT_RMS)),
    "cifg, rms_norm": (cifg, SIZES, {"output_norm": "rms_norm"}, by_cifg(**RMS_NORM)),
    "cifg, layer_norm": (cifg, SIZES, {"recurrence": "layer_norm"}, reference.layer_norm_cifg_logits),
    "si_cifg": (cifg, SIZES, {**SI, "output_norm": "none"}, by_cifg(**SI_CIFG)),
    "si_cifg, unit_rms": (cifg, SIZES, {**SI, "output_norm": "unit_rms"}, by_cifg(**SI_CIFG, **UNIT_RMS)),
    "si_cifg, rms_norm": (cifg, SIZES, {**SI, "output_norm": "rms_norm"}, by_cifg(**SI_CIFG, **RMS_NORM)),
    "transformer": (transformer, BLOCKS, {}, by_transformer()),
    "transformer, rms_norm": (transformer, BLOCKS, {"final_norm": "rms_norm"}, by_transformer(**RMS_BLOCKS)),
    "si_transformer": (transformer, BLOCKS, SI_ATTENTION, by_transformer(**RELU)),
    "si_transformer, rms_norm": (
        transformer,
        BLOCKS,
        {**SI_ATTENTION, "final_norm": "rms_norm"},
        by_transformer(**RELU, **RMS_BLOCKS),
    ),
}
QUICK = ("untied cifg", "si_cifg, rms_norm", "cifg, layer_norm", "transformer", "si_transformer, rms_norm")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in VARIANTS]
)
def test_logits_in_float64(name):
    build, config, parts, expected = VARIANTS[name]
    model = build("small", dataclasses.replace(config, **parts))
    params = jax.tree_util.tree_map(np.float64, perturbed(jax.jit(model.init)(jax.random.key(3))))
    tokens = random_batch((9, 2, 0, 5), 6, config.vocabulary_size).tokens[:, :-1]
    with jax.enable_x64(True):
        logits = jax.jit(model.apply)(params, tokens)
        assert logits.dtype == jnp.float64
        np.testing.assert_allclose(logits, expected(params, np.asarray(tokens)), rtol=1e-10, atol=1e-10)


def test_positions():
    expected = [reference.position_encoding(position, 12) for position in range(40)]
    np.testing.assert_allclose(sinusoidal_positions(np.arange(40), 12), expected, rtol=1e-5, atol=1e-5)
