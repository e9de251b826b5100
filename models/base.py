"""The types every model shares: a batch of token sequences, and a model as a record of pure functions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from fedlm.models.arguments import check_fields, checked_arguments
from fedlm.models.errors import ConfigurationError
from fedlm.models.losses import ExampleSums, cross_entropy, next_token_sums
from fedlm.models.pickling import made_by
from fedlm.models.special_tokens import OWN, PAD_ID, SpecialTokens

Params = Any
"""A pytree of float arrays."""


def parameter_name(path: Any, separator: str = ".") -> str:
    """Name an array of a pytree by the keys and indices on its path, as `jax.tree_util.tree_leaves_with_path` gives it:
    `blocks.0.query.kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator=separator)


Objective = Literal["causal", "masked"]
"""What a model is trained on: the next token, or tokens of the input that were masked."""


class Batch(NamedTuple):
    """Token sequences that are trained on, or evaluated, together.

    Attributes:
      tokens: int32 [batch, length + 1]; `[BOS] w1 .. wk [EOS]`, cut or padded with PAD. The model reads
        `tokens[:, :-1]` and predicts `tokens[:, 1:]`.
      weight: float32 [batch]; 1 for an example, 0 for a row that only fills the batch.
      completion_start: int32 [batch], where in `tokens` the completion of a prompt begins, at least 1: only tokens
        from there on are targets. None where all are.
      dropout: uint32 [batch, 2], the key of each row's dropout; None where nothing is dropped.

    Example:
      >>> batch = Batch(tokens=jnp.array([[1, 4, 5, 2], [1, 6, 2, 0]]), weight=jnp.ones(2))
      >>> batch.tokens.shape
      (2, 4)
      >>> batch._replace(completion_start=jnp.array([2, 1])).targets.tolist()
      [[0, 5, 2], [6, 2, 0]]
    """

    tokens: jax.Array
    weight: jax.Array
    completion_start: jax.Array | None = None
    dropout: jax.Array | None = None

    @property
    def targets(self) -> jax.Array:
        """int32 [batch, length]: what is predicted, PAD where nothing counts."""
        targets = self.tokens[:, 1:]
        if self.completion_start is None:
            return targets
        places = jnp.arange(1, self.tokens.shape[1])
        return jnp.where(places >= self.completion_start[:, None], targets, PAD_ID)


class WeightedBatch(Protocol):
    """Examples of any objective: a `Batch`, or a `fedlm.models.families.masked_language.MaskedBatch`."""

    @property
    def weight(self) -> jax.Array:
        """float32 [batch]; 1 for an example, 0 for a row that only fills the batch."""


class Decoder(NamedTuple):
    """How a causal model reads tokens bit by bit, so that a next one costs one step and not the whole text again.

    Rows are read side by side: of each any number of tokens, none among them, at a time. What a row gives does not
    depend on the others.

    Attributes:
      begin: maps (params, number of rows, tokens that are read of any row in all, padding among them) to a state, a
        pytree of arrays, in which nothing has been read.
      read: maps (params, state, int32 tokens [rows, length], int32 counts [rows]) to logits [rows, vocabulary_size]
        and the next state. Of each row `tokens[:count]` are read after all that was read before, and what follows is
        padding; the logits are those after the last token that was read, and mean nothing where there was none.
      prepare: maps the model's params to those that `begin` and `read` take; done once, not at every step.
      max_length: most tokens that a row may have; None for no limit.
    """

    begin: Callable[[Params, int, int], Any]
    read: Callable[[Params, Any, jax.Array, jax.Array], tuple[jax.Array, Any]]
    prepare: Callable[[Params], Params] = lambda params: params
    max_length: int | None = None


@dataclass(frozen=True)
class Model:
    """A language model: no state, only functions of a pytree of parameters.

    Any framework's model fits: give its `init` and `apply` here (docs/my-own-model.md shows it).

    Attributes:
      name: the name in the registry, or any other for a model of your own.
      vocabulary_size: number of token ids, the four special tokens included, and the mask of a masked model.
      init: maps a PRNG key to freshly drawn float32 parameters.
      apply: maps (params, int32 tokens [batch, length]) to logits [batch, length, vocabulary_size]. The logits
        at position t of a causal model may depend on tokens[:, : t + 1] only.
      loss: maps (params, batch) to per-example sums [batch]; the batch is a `Batch` for a causal model, a
        `fedlm.models.families.masked_language.MaskedBatch` for a masked one.
      objective: what the loss is of.
      special_tokens: those of the vocabulary whose ids its tokens are.
      decoder: how it reads tokens bit by bit; None where it only reads whole texts, see
        `fedlm.models.decoding.decoder_of`.
      with_frozen: maps parameters that are not trained, float arrays, to the model that has them. A model of adapters
        needs it: without them it has no logits and no loss; see `given_frozen`. None for all other models.
      with_dropout: maps a share, above 0 and below 1, to the model whose loss drops so much of its activations. Its
        batches have keys for it, see `fedlm.models.layers.dropout.with_dropout`; None for a model without dropout.

    Example:
      >>> import fedlm
      >>> model = fedlm.create_model("cifg_tiny", vocabulary_size=50)
      >>> params = model.init(jax.random.key(0))
      >>> model.apply(params, jnp.zeros((2, 7), jnp.int32)).shape
      (2, 7, 50)
    """

    name: str
    vocabulary_size: int
    init: Callable[[jax.Array], Params] = field(repr=False)
    apply: Callable[[Params, jax.Array], jax.Array] = field(repr=False)
    loss: Callable[[Params, Any], ExampleSums] = field(repr=False)
    objective: Objective = "causal"
    special_tokens: SpecialTokens = field(default=OWN, repr=False)
    decoder: Decoder | None = field(default=None, repr=False)
    with_frozen: "Callable[[Params], Model] | None" = field(default=None, repr=False)
    with_dropout: "Callable[[float], Model] | None" = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)


_InitAndApply = tuple[Callable[[jax.Array], Params], Callable[[Params, jax.Array], jax.Array]]


@checked_arguments
def language_model(
    name: str,
    vocabulary_size: int,
    init: Callable[[jax.Array], Params],
    apply: Callable[[Params, jax.Array], jax.Array],
    *,
    special_tokens: SpecialTokens = OWN,
) -> Model:
    """Make a `Model`, from what it is made of, whose loss is the cross-entropy of the next token.

    The loss raises ConfigurationError where it is traced and `apply` gives logits of another shape than it must.

    Example:
      >>> bigrams = language_model("bigrams", 9, lambda key: jnp.zeros((9, 9)), lambda params, tokens: params[tokens])
      >>> sums = bigrams.loss(bigrams.init(jax.random.key(0)), Batch(jnp.array([[1, 4, 5, 2]]), jnp.ones(1)))
      >>> float(sums.tokens[0])
      3.0
    """
    return made_by(_language_model, name, vocabulary_size, (init, apply), special_tokens)


def _language_model(name: str, vocabulary_size: int, functions: _InitAndApply, special_tokens: SpecialTokens) -> Model:
    init, apply = functions

    def loss(params: Params, batch: Batch) -> ExampleSums:
        logits = apply(params, batch.tokens[:, :-1])
        targets = batch.targets
        check_logits(name, logits, (*targets.shape, vocabulary_size))
        return next_token_sums(cross_entropy(logits, targets), logits, targets, special_tokens)

    return Model(name, vocabulary_size, init, apply, loss, special_tokens=special_tokens)


def given_frozen(model: Model, frozen: Params) -> Model:
    """Give a model the parameters that are not trained, where it has such.

    A compiled program has to take them as an argument and call this inside: of arrays that a function closes over JAX
    would write a copy into the program.
    """
    return model if model.with_frozen is None else made_by(model.with_frozen, frozen)


def check_logits(name: str, logits: Any, expected: tuple[int, ...]) -> None:
    """Refuse, as a ConfigurationError, what a model's `apply` gave if it is no array of the shape of its logits.

    Picking a target beyond the logits gives NaN, not an error.
    """
    found = getattr(logits, "shape", None)
    if found != expected:
        what = f"logits of shape {found}" if found is not None else f"a {type(logits).__name__}"
        raise ConfigurationError(
            f"model {name!r}: apply gave {what}, but must give {expected}: [batch, length, vocabulary_size]"
        )


def batch_loss(model: Model, params: Params, batch: WeightedBatch) -> tuple[jax.Array, ExampleSums]:
    """Compute the loss that is trained on: the mean over the batch's non-PAD target tokens.

    Args:
      model: the model.
      params: its parameters.
      batch: examples of the model's objective; rows of weight 0 count for nothing.

    Returns:
      The scalar loss in nats per token, 0 where no row has weight, and the per-example sums.
    """
    sums = model.loss(params, batch)
    weighted = weigh_examples(sums, batch)
    return jnp.sum(weighted.loss) / jnp.maximum(jnp.sum(weighted.tokens), 1.0), sums


def weigh_examples(sums: ExampleSums, batch: WeightedBatch) -> ExampleSums:
    """Multiply each example's sums by its weight; a row of weight 0 gives zeros, whatever its sums are."""
    # A row that only fills the batch must not spread a NaN, which 0 * NaN would.
    return ExampleSums(*(jnp.where(batch.weight > 0, batch.weight * values, 0.0) for values in sums))


@checked_arguments
def parameter_count(model: Model) -> int:
    """Count a model's parameters, scalar by scalar, without allocating them.

    Example:
      >>> import fedlm
      >>> parameter_count(fedlm.create_model("cifg_19m"))
      18884608
    """
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree_util.tree_leaves(shapes))
