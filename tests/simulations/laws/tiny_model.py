"""A model that compiles in a moment, by a name that every process finds."""

import dataclasses

import jax

from fedlm.models.base import Model, language_model
from fedlm.models.layers.basic import dense, embed, init_dense, init_embedding, logits_from_table
from fedlm.models.registry import ModelEntry
from fedlm.models.special_tokens import OWN, SpecialTokens

WIDTH = 64


@dataclasses.dataclass(frozen=True)
class TinyConfig:
    vocabulary_size: int = 100
    special_tokens: SpecialTokens = OWN


def build(name: str, config: TinyConfig) -> Model:
    """Predict the next token by this one: a tied embedding and one dense layer."""

    def init(rng):
        return {
            "embedding": init_embedding(rng, config.vocabulary_size, WIDTH),
            "output_bias": jax.numpy.zeros(config.vocabulary_size),
            "dense": init_dense(rng, WIDTH, WIDTH),
        }

    def apply(params, tokens):
        x = dense(params["dense"], embed(params["embedding"], tokens))
        return logits_from_table(params["embedding"], params["output_bias"], x)

    return language_model(name, config.vocabulary_size, init, apply, special_tokens=config.special_tokens)


TINY = ModelEntry(build, TinyConfig())
NAME = f"{__name__}:TINY"
