"""Logits against the float64 NumPy reference; sequential recommenders are held to it in test_dropout.py."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.models import cifg as recurrent
from fedlm.models import transformer as attentive
from fedlm.models.cifg import CifgConfig
from fedlm.models.layers import sinusoidal_positions
from fedlm.models.transformer import TransformerConfig
from tests.models import numpy_reference as reference
from tests.models.small_models import perturbed, random_batch

SIZES = CifgConfig(vocabulary_size=29, embedding=10, hidden=14)
UNTIED = CifgConfig(vocabulary_size=29, embedding=10, hidden=14, tied=False, unroll=3)
BLOCKS = TransformerConfig(vocabulary_size=29, layers=2, heads=3, embedding=12, mlp=20)
SI_CIFG = {"gate": reference.si_sigmoid, "cell": reference.si_tanh}
UNIT_RMS = {"final": lambda params, h: reference.unit_rms(h)}
RMS_NORM = {"final": lambda params, h: reference.rms_norm(params["output_norm"], h)}
RMS_BLOCKS = {"final": reference.rms_norm}
RELU = {"weights_of": reference.normalised_relu}
by_cifg = functools.partial(functools.partial, reference.cifg_logits)
by_transformer = functools.partial(functools.partial, reference.transformer_logits, heads=3)
ARCHITECTURES = {
    "cifg": (recurrent.cifg, SIZES, by_cifg()),
    "untied cifg": (recurrent.cifg, UNTIED, by_cifg()),
    "si_cifg": (recurrent.si_cifg, SIZES, by_cifg(**SI_CIFG, **RMS_NORM)),
    "si_cifg_published": (recurrent.si_cifg_published, SIZES, by_cifg(**SI_CIFG)),
    "si_cifg_unit_rms": (recurrent.si_cifg_unit_rms, SIZES, by_cifg(**SI_CIFG, **UNIT_RMS)),
    "cifg_unit_rms": (recurrent.cifg_unit_rms, SIZES, by_cifg(**UNIT_RMS)),
    "cifg_rms_norm": (recurrent.cifg_rms_norm, SIZES, by_cifg(**RMS_NORM)),
    "cifg_layer_norm": (recurrent.cifg_layer_norm, SIZES, reference.layer_norm_cifg_logits),
    "transformer": (attentive.transformer, BLOCKS, by_transformer()),
    "si_transformer": (attentive.si_transformer, BLOCKS, by_transformer(**RELU)),
    "transformer_rms_norm": (attentive.transformer_rms_norm, BLOCKS, by_transformer(**RMS_BLOCKS)),
    "si_transformer_rms_norm": (attentive.si_transformer_rms_norm, BLOCKS, by_transformer(**RELU, **RMS_BLOCKS)),
}
QUICK = ("untied cifg", "si_cifg", "cifg_layer_norm", "transformer", "si_transformer_rms_norm")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in ARCHITECTURES]
)
def test_logits_in_float64(name):
    build, config, expected = ARCHITECTURES[name]
    model = build("small", config)
    params = jax.tree_util.tree_map(np.float64, perturbed(jax.jit(model.init)(jax.random.key(3))))
    tokens = random_batch((9, 2, 0, 5), 6, config.vocabulary_size).tokens[:, :-1]
    with jax.enable_x64(True):
        logits = jax.jit(model.apply)(params, tokens)
        assert logits.dtype == jnp.float64
        np.testing.assert_allclose(logits, expected(params, np.asarray(tokens)), rtol=1e-10, atol=1e-10)


def test_positions():
    expected = [reference.position_encoding(position, 12) for position in range(40)]
    np.testing.assert_allclose(sinusoidal_positions(np.arange(40), 12), expected, rtol=1e-5, atol=1e-5)
