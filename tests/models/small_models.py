"""Every registered architecture at sizes that compile and run in a moment, and batches for them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.models.base import Batch, batch_loss
from fedlm.models.families.masked_language import MaskedBatch
from fedlm.models.families.parameter_errors import ParameterErrors
from fedlm.models.families.published_decoder import published_decoder
from fedlm.models.families.published_decoder_config import PublishedDecoderConfig
from fedlm.models.registry import MODELS, find_entry
from fedlm.models.special_tokens import BOS_ID, EOS_ID, OOV_ID, PAD_ID

# Unlike every other size, so that an array with this many rows is indexed by token.
VOCABULARY = 53
LENGTH = 8
# Words per example: cut off before its EOS, one word, filling the length exactly, several PADs.
WORDS = (LENGTH, 1, LENGTH - 1, 4)
_LARGEST = {"embedding": 16, "hidden": 24, "layers": 1, "heads": 2, "mlp": 40, "max_length": 12}
_LARGEST |= {"head_size": 6, "key_value_heads": 2, "query_scale": 6}

# What no named model has: shared keys and values, windows, caps and every norm.
EVERY_PART = PublishedDecoderConfig(
    vocabulary_size=VOCABULARY,
    layers=2,
    heads=4,
    key_value_heads=2,
    head_size=6,
    embedding=16,
    mlp=40,
    max_length=12,
    query_scale=5.0,
    epsilon=1e-6,
    rope_base=1000.0,
    windows=(3, 0),
    window_rope_base=10.0,
    attention_cap=2.0,
    logit_cap=3.0,
    post_norms=True,
    query_key_norms=True,
    norm="rms_norm_1",
    positions="rotary",
    activation="gelu",
    gated=True,
    biases="none",
    scaled_embedding=True,
    tied=True,
)


def made_up_errors(vocabulary, noise_batch_ratio=0.05):
    """Errors of parameters that differ much among tokens."""
    relevance = np.random.default_rng(5).uniform(0.05, 1.0, vocabulary)
    return ParameterErrors(noise_batch_ratio, tuple(relevance.tolist()))


def shrink(build, config):
    """Cap the sizes that a config has and that we know."""
    # A masked model has one id more than its data.
    data_vocabulary = VOCABULARY - (build("own", config).vocabulary_size - config.vocabulary_size)
    sizes = {"vocabulary_size": data_vocabulary}
    if hasattr(config, "parameter_errors"):
        sizes["parameter_errors"] = made_up_errors(data_vocabulary)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in _LARGEST and type(value) is int:
            sizes[field.name] = min(value, _LARGEST[field.name])
    return dataclasses.replace(config, **sizes)


def inputs_of(batch):
    """The tokens that a next one is predicted from, PAD after them."""
    return jnp.where(batch.tokens[:, 1:] != PAD_ID, batch.tokens[:, :-1], PAD_ID)


def trained_on_batches(model):
    """Let a masked model's loss take a `Batch` too, with the next token as each position's target."""
    if model.objective == "causal":
        return model

    def loss(params, batch):
        return model.loss(params, MaskedBatch(inputs_of(batch), batch.tokens[:, 1:], batch.weight))

    return dataclasses.replace(model, loss=loss)


class SmallModel:
    """A shrunken model with compiled functions that the tests share."""

    def __init__(self, name, build, config):
        self.name = name
        self.config = config
        self.model = trained_on_batches(build(name, config))
        self.init = jax.jit(self.model.init)
        self.apply = jax.jit(self.model.apply)
        self.sums = jax.jit(self.model.loss)
        self.loss_sums_and_gradient = jax.jit(
            jax.value_and_grad(lambda params, batch: batch_loss(self.model, params, batch), has_aux=True)
        )

    def loss_and_gradient(self, params, batch):
        (loss, _), gradient = self.loss_sums_and_gradient(params, batch)
        return loss, gradient

    @functools.cached_property
    def params(self):
        return perturbed(self.model.init(jax.random.key(0)))


def perturbed(params, seed=0):
    """Move every parameter off its initial value, so that biases and the like take part."""
    rng = np.random.default_rng(seed)
    return jax.tree_util.tree_map(
        lambda leaf: np.asarray(leaf) + 0.1 * rng.normal(size=leaf.shape).astype(leaf.dtype), params
    )


def sequence(words, length=LENGTH):
    """`[BOS] words [EOS]`, cut or padded to length + 1."""
    tokens = [BOS_ID, *words, EOS_ID]
    return (tokens + [PAD_ID] * (length + 1 - len(tokens)))[: length + 1]


def random_batch(words=WORDS, length=LENGTH, vocabulary=VOCABULARY, seed=0):
    """One example per number of words; some of the words are OOV."""
    rng = np.random.default_rng(seed)
    rows = [sequence(list(rng.integers(OOV_ID, vocabulary, size=n)), length) for n in words]
    return Batch(jnp.asarray(rows, jnp.int32), jnp.ones(len(rows)))


def dropout_keys(number, seed=0):
    """Keys by which so many examples are dropped."""
    return jnp.asarray(np.random.default_rng(seed).integers(0, 2**32, (number, 2), dtype=np.uint32))


ARITHMETIC_OF_THEIR_OWN = ("si_cifg_tiny", "cifg_tiny+recurrence=layer_norm", "si_transformer_tiny")
ARITHMETIC_OF_THEIR_OWN += ("lstm4rec_tiny", "gemma", "gpt2")


def each(models, more=(), long=ARITHMETIC_OF_THEIR_OWN):
    """One parameter for each model of a dictionary.

    The first of each kind of configuration has no mark, nor have those that `more` names. Those that `long` names take
    long, and the others, which add little to these, are tried thoroughly alone.
    """
    plain = {*more, *({type(small.config): name for name, small in reversed(models.items())}.values())}
    marks = {name: pytest.mark.long if name in long else pytest.mark.thorough for name in models}
    return [pytest.param(small, id=name, marks=() if name in plain else marks[name]) for name, small in models.items()]


VARIANTS = (
    "si_cifg_tiny+output_norm=none",
    "si_cifg_tiny+output_norm=unit_rms",
    "cifg_tiny+output_norm=unit_rms",
    "cifg_tiny+output_norm=rms_norm",
    "cifg_tiny+recurrence=layer_norm",
    "transformer_tiny+final_norm=rms_norm",
    "si_transformer_tiny+final_norm=rms_norm",
    "transformer_tiny+reattention",
    "si_transformer_tiny+reattention",
    "gru4rec_tiny+tied=false",
    "lstm4rec_tiny+tied=false",
    "lstm4rec_tiny+tied=false+projection=false",
    "sasrec_tiny+tied=false",
)
"""The settings of families, beside the named models."""


def _distinct():
    # Named models that differ only in their sizes shrink to one; each architecture and each shrunken
    # configuration occurs once at least.
    models, seen = {}, set()
    for name in (*MODELS, *VARIANTS):
        build, config = find_entry(name)
        small = shrink(build, config)
        if not {build, small} <= seen:
            models[name] = SmallModel(name, build, small)
            seen |= {build, small}
    return models


SMALL_MODELS = _distinct()
# Those with re-attention are trained whole.
ADAPTABLE = {name: small for name, small in SMALL_MODELS.items() if not hasattr(small.config, "parameter_errors")}
EVERY_PART_OF_GEMMA = SmallModel("gemma", published_decoder, EVERY_PART)
_PLAIN = {"query_scale": 6.0, "windows": (), "window_rope_base": None, "attention_cap": None, "logit_cap": None}
_PLAIN |= {"post_norms": False, "scaled_embedding": False, "never_predicted": (0, 1)}
_LLAMA = dataclasses.replace(EVERY_PART, **_PLAIN, query_key_norms=False, norm="rms_norm", activation="silu")
_GPT2 = dataclasses.replace(
    EVERY_PART, **_PLAIN, query_key_norms=False, norm="layer_norm", positions="learned", gated=False, biases="all"
)
PUBLISHED_DECODERS = {
    "gemma": EVERY_PART_OF_GEMMA,
    "llama": SmallModel("llama", published_decoder, dataclasses.replace(_LLAMA, tied=False)),
    "qwen2": SmallModel("qwen2", published_decoder, dataclasses.replace(_LLAMA, biases="query_key_value")),
    "gpt2": SmallModel("gpt2", published_decoder, dataclasses.replace(_GPT2, key_value_heads=4)),
}
