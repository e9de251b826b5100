"""The choices that are weighed against each other, each as a model that differs from ours in one thing.

Names are used as `--model benchmarks.architectures.variants:NAME`.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from models.base import Model, Params, language_model
from models.cifg import CifgConfig
from models.layers import embed, layer_norm, logits_from_table
from models.recurrent import cifg_layer
from models.registry import MODELS, ModelEntry
from models.scale_invariant import si_sigmoid, si_tanh

ChangeParams = Callable[[Params], Params]


def with_start(name: str, change: ChangeParams) -> ModelEntry:
    """Make a model start from other parameters.

    Args:
      name: of the registered model.
      change: what is done to freshly drawn parameters.

    Returns:
      The variant.
    """
    entry = MODELS[name]

    def build(name: str, config: object) -> Model:
        model = entry.build(name, config)
        return dataclasses.replace(model, init=lambda rng: change(model.init(rng)))

    return ModelEntry(build, entry.config)


def scale_recurrence(**factors: float) -> ChangeParams:
    """Scale weight matrices of the recurrent layer.

    Args:
      **factors: from `input`, `recurrent` and `projection` to a factor.

    Returns:
      The change.
    """

    def change(params: Params) -> Params:
        layer = dict(params["recurrent"])
        for part, factor in factors.items():
            layer[part] = {**layer[part], "kernel": factor * layer[part]["kernel"]}
        return {**params, "recurrent": layer}

    return change


def orthogonal_recurrence(params: Params) -> Params:
    """Draw the recurrent matrix of each gate with orthonormal rows, as Keras does for the whole."""
    kernel = params["recurrent"]["recurrent"]["kernel"]
    keys = jax.random.split(jax.random.key(17), 3)
    gates = [jax.nn.initializers.orthogonal()(key, (kernel.shape[0], kernel.shape[1] // 3)) for key in keys]
    layer = {**params["recurrent"], "recurrent": {"kernel": jnp.concatenate(gates, axis=1)}}
    return {**params, "recurrent": layer}


def si_cifg_like(embedding_scale: str = "sqrt", output: str = "plain") -> Callable[[str, CifgConfig], Model]:
    """Make SI-CIFG with other scales at its ends.

    Args:
      embedding_scale: `sqrt` multiplies embeddings by sqrt(e), `one` leaves them alone.
      output: `plain` scores h itself; `normalised` scores h / rms(h) with rows of the table of unit expected norm;
        `sqrt` scores h sqrt(e).

    Returns:
      A function that builds it.
    """

    def build(name: str, config: CifgConfig) -> Model:
        original = MODELS["si_cifg_tiny"].build(name, config)
        factor = config.embedding**0.5 if embedding_scale == "sqrt" else 1.0
        norm = {"scale": jnp.ones(config.embedding), "shift": jnp.zeros(config.embedding)}

        def apply(params: Params, tokens: jax.Array) -> jax.Array:
            x = embed(params["embedding"], tokens) * factor
            h = cifg_layer(params["recurrent"], x, si_sigmoid, si_tanh)
            if output == "normalised":
                h = layer_norm(norm, h)
            if output == "sqrt":
                h = h * config.embedding**0.5
            return logits_from_table(params["embedding"], params["output_bias"], h)

        return language_model(name, config.vocabulary_size, original.init, apply)

    return build


_TINY = MODELS["si_cifg_tiny"].config
SMALL_RECURRENCE = with_start("si_cifg_tiny", scale_recurrence(recurrent=0.1))
NO_RECURRENCE = with_start("si_cifg_tiny", scale_recurrence(recurrent=0.0))
LARGE_GATES = with_start("si_cifg_tiny", scale_recurrence(input=10.0, recurrent=10.0))
SMALL_PROJECTION = with_start("si_cifg_tiny", scale_recurrence(projection=0.1))
ORTHOGONAL = with_start("si_cifg_tiny", orthogonal_recurrence)
UNIT_EMBEDDING = ModelEntry(si_cifg_like(embedding_scale="one"), _TINY)
NORMALISED_OUTPUT = ModelEntry(si_cifg_like(output="normalised"), _TINY)
LARGE_OUTPUT = ModelEntry(si_cifg_like(output="sqrt"), _TINY)
