"""Cross-entropy of the next token, and the sums that perplexity and accuracy are made of."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedlm.models.special_tokens import OOV_ID, OWN, PAD_ID, SpecialTokens


class ExampleSums(NamedTuple):
    """Sums over the target tokens of each example, all float32 [batch].

    `loss` and `tokens` count every target but PAD: training minimises `loss / tokens`. The others are what
    is reported. "Scored" targets are neither PAD nor EOS; "in-vocabulary" ones are scored and not OOV.

    Attributes:
      loss: cross-entropy in nats over non-PAD targets.
      tokens: number of non-PAD targets.
      scored_loss: cross-entropy in nats over scored targets.
      scored_tokens: number of scored targets.
      scored_correct: scored targets that have the highest logit.
      in_vocabulary_tokens: number of in-vocabulary targets.
      in_vocabulary_correct: in-vocabulary targets that have the highest logit.

    Example:
      >>> import jax.numpy as jnp
      >>> logits, targets = jnp.zeros((1, 3, 9)), jnp.array([[4, 5, 2]])
      >>> next_token_sums(cross_entropy(logits, targets), logits, targets).tokens.tolist()
      [3.0]
    """

    loss: jax.Array
    tokens: jax.Array
    scored_loss: jax.Array
    scored_tokens: jax.Array
    scored_correct: jax.Array
    in_vocabulary_tokens: jax.Array
    in_vocabulary_correct: jax.Array


@jax.custom_vjp
def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Compute the cross-entropy of int targets [...] under logits [..., vocabulary], float32 [...] in nats."""
    return _cross_entropy_forward(logits, targets)[0]


def _cross_entropy_forward(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, tuple]:
    log_normalizer = jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)
    losses = log_normalizer - target_logits(logits, targets)
    return losses, (logits, targets, log_normalizer)


def _cross_entropy_backward(residuals: tuple, gradient: jax.Array) -> tuple[jax.Array, None]:
    # The derivative of the gather would be a scatter; comparing with the target fuses with the softmax.
    logits, targets, log_normalizer = residuals
    probabilities = jnp.exp(logits.astype(jnp.float32) - log_normalizer[..., None])
    is_target = jnp.arange(logits.shape[-1]) == targets[..., None]
    return (gradient[..., None] * (probabilities - is_target)).astype(logits.dtype), None


cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def next_token_sums(
    losses: jax.Array, logits: jax.Array, targets: jax.Array, special_tokens: SpecialTokens = OWN
) -> ExampleSums:
    """Sum loss, correct predictions and token counts over each example's targets.

    Args:
      losses: float32 [batch, length], the cross-entropy of each target.
      logits: float [batch, length, vocabulary].
      targets: int32 [batch, length].
      special_tokens: of the vocabulary.
    """
    return sums_over_targets(losses, first_of_highest(logits, targets), targets, special_tokens)


def sums_over_targets(
    losses: jax.Array, correct: jax.Array, targets: jax.Array, special_tokens: SpecialTokens
) -> ExampleSums:
    """Sum as `next_token_sums` does, knowing which targets have the highest logit: bool [batch, length]."""
    real = targets != PAD_ID
    scored = real & (targets != special_tokens.eos)
    in_vocabulary = scored & (targets != OOV_ID)

    def count(mask: jax.Array) -> jax.Array:
        return jnp.sum(mask, axis=-1, dtype=jnp.float32)

    return ExampleSums(
        loss=jnp.sum(jnp.where(real, losses, 0.0), axis=-1),
        tokens=count(real),
        scored_loss=jnp.sum(jnp.where(scored, losses, 0.0), axis=-1),
        scored_tokens=count(scored),
        scored_correct=count(scored & correct),
        in_vocabulary_tokens=count(in_vocabulary),
        in_vocabulary_correct=count(in_vocabulary & correct),
    )


def first_of_highest(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Say which targets, int [...], are the first of the highest logits [..., vocabulary]."""
    # The same as argmax(logits) == targets, by reductions that vectorise on a CPU.
    of_target = target_logits(logits, targets)
    before = jnp.where(jnp.arange(logits.shape[-1]) < targets[..., None], logits, -jnp.inf)
    return (of_target >= jnp.max(logits, axis=-1)) & (of_target > jnp.max(before, axis=-1))


def target_logits(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Pick the logits of the targets: float [..., vocabulary] and int [...] to float32 [...]."""
    return jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0].astype(jnp.float32)
