"""A model whose sums are made up: in one of its arrays the noise is to be read, the other tells sums apart."""

import hashlib
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.privacy.histories.tally import WIDTH
from fedlm.models.base import Model, language_model
from fedlm.models.registry import ModelEntry

NAME = f"{__name__}:TOY"
MARKS = 8


@dataclass(frozen=True)
class ToyConfig:
    vocabulary_size: int = 10


def _build(name: str, config: ToyConfig) -> Model:
    def init(key: jax.Array) -> dict[str, jax.Array]:
        return {"marks": jax.random.normal(key, (MARKS,)), "noise": jnp.zeros(WIDTH)}

    def apply(params: Any, tokens: jax.Array) -> jax.Array:
        return jnp.zeros((*tokens.shape, config.vocabulary_size)) + jnp.sum(params["marks"])

    return language_model(name, config.vocabulary_size, init, apply)


TOY = ModelEntry(_build, ToyConfig())


def marks(*parts: object) -> np.ndarray:
    """Make up numbers that follow from some parts: float32 [MARKS], between 0 and 1."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return (np.frombuffer(digest, "<u4") / np.float64(2**32)).astype(np.float32)[:MARKS]
