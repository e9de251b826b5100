"""Recurrent sequential recommenders: GRU4Rec, and the same with an LSTM.

Items are the tokens. As RecBole has GRU4Rec: item embeddings, GRU layers, a dense layer back to the embeddings' size,
and scores of items by their embeddings; trained on the cross-entropy of the next item. Hidasi et al. 2016,
"Session-based recommendations with recurrent neural networks", had a ranking loss, and a table of its own to score by
(`tied=False`). Without the dense layer (`projection=False`) it is the character model of McMahan et al. 2017. Dropout
is of each layer's inputs and of the last one's outputs, not within the recurrence (Zaremba et al. 2014, "Recurrent
neural network regularization").
"""

from dataclasses import dataclass

import jax

from fedlm.models.base import Decoder, Model, Params
from fedlm.models.errors import ConfigurationError, setting
from fedlm.models.families.transformer import check_layers
from fedlm.models.layers.basic import dense, embed, init_dense, init_embedding
from fedlm.models.layers.dropout import Drop, drop_nothing
from fedlm.models.layers.key_value_cache import last_read
from fedlm.models.layers.linear_head import linear_head_model
from fedlm.models.layers.recurrences.gated_recurrence import (
    GRU,
    LSTM,
    Cell,
    State,
    begin_recurrent,
    init_recurrent_layer,
    read_recurrent,
    recurrent_layer,
)
from fedlm.models.special_tokens import OWN, SpecialTokens


@dataclass(frozen=True, kw_only=True)
class RecurrentRecommenderConfig:
    """Sizes of a recurrent recommender. The defaults are those of RecBole's GRU4Rec.

    Attributes:
      vocabulary_size: number of token ids: items and special tokens.
      layers: recurrent layers, one on the other.
      embedding: size of the items' embeddings.
      hidden: size of each layer's state.
      tied: whether items are scored by their embeddings; else by a table of their own.
      projection: whether a dense layer goes back to the embeddings' size; else the table has the size of a state.
      unroll: time steps that the compiled loop takes at once; results are the same.
      special_tokens: those of the vocabulary.
    """

    vocabulary_size: int = 4096
    layers: int = 1
    embedding: int = 64
    hidden: int = 128
    tied: bool = True
    projection: bool = True
    unroll: int = 1
    special_tokens: SpecialTokens = OWN

    def __post_init__(self) -> None:
        check_layers(self.layers)
        if self.tied and not self.projection and self.hidden != self.embedding:
            raise ConfigurationError(
                f"{setting('hidden')} is {self.hidden}, but without a projection must be {self.embedding} as the "
                f"embeddings, which score items; or give {setting('tied', False)}"
            )


def gru4rec(name: str, config: RecurrentRecommenderConfig) -> Model:
    """Make a recommender with GRU layers."""
    return _recommender(name, config, GRU)


def lstm4rec(name: str, config: RecurrentRecommenderConfig) -> Model:
    """Make a recommender with LSTM layers."""
    return _recommender(name, config, LSTM)


def _recommender(name: str, config: RecurrentRecommenderConfig, cell: Cell) -> Model:
    def init(rng: jax.Array) -> Params:
        rng_embedding, rng_layers, rng_projection, rng_output = jax.random.split(rng, 4)
        widths = [config.embedding] + [config.hidden] * (config.layers - 1)
        params = {
            "embedding": init_embedding(rng_embedding, config.vocabulary_size, config.embedding),
            "recurrent": [
                init_recurrent_layer(cell, rng_layer, width, config.hidden)
                for rng_layer, width in zip(jax.random.split(rng_layers, config.layers), widths, strict=True)
            ],
        }
        if config.projection:
            params["projection"] = init_dense(rng_projection, config.hidden, config.embedding, bias=True)
        if not config.tied:
            width = config.embedding if config.projection else config.hidden
            params["output"] = init_embedding(rng_output, config.vocabulary_size, width)
        return params

    def inputs(params: Params, tokens: jax.Array) -> jax.Array:
        # Rows of unit norm times sqrt(e) have entries of unit size: small inputs would drown in the recurrence.
        return embed(params["embedding"], tokens) * config.embedding**0.5

    def features(params: Params, tokens: jax.Array, drop: Drop = drop_nothing) -> jax.Array:
        x = drop(inputs(params, tokens), 0)
        for number, layer in enumerate(params["recurrent"]):
            x = drop(recurrent_layer(cell, layer, x, config.unroll), 1 + number)
        return dense(params["projection"], x) if config.projection else x

    def begin(params: Params, rows: int, length: int) -> tuple[State, ...]:
        return tuple(begin_recurrent(cell, layer, rows) for layer in params["recurrent"])

    def read(
        params: Params, states: tuple[State, ...], tokens: jax.Array, counts: jax.Array
    ) -> tuple[jax.Array, tuple[State, ...]]:
        x, after = inputs(params, tokens), []
        for layer, state in zip(params["recurrent"], states, strict=True):
            x, state = read_recurrent(cell, layer, state, x, counts=counts)
            after.append(state)
        last = last_read(x, counts)
        return dense(params["projection"], last) if config.projection else last, tuple(after)

    def head(params: Params) -> tuple[Params, None]:
        return params["embedding" if config.tied else "output"], None

    return linear_head_model(
        name,
        config.vocabulary_size,
        init=init,
        features=features,
        head=head,
        special_tokens=config.special_tokens,
        decoder=Decoder(begin, read),
        dropped_features=features,
    )
