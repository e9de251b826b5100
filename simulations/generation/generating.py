"""Continuing token sequences with a causal model, many at once, a step a token.

Prompts are read once; from there every token is one step of a compiled loop, from which the host takes tokens in chunks
and in which rows that have ended are not read any more. A program is compiled for each number of rows, and of each
bucket of prompt lengths, not for each length.
"""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.number_ranges import Range
from fedlm.fl_core.randomness import device_key
from fedlm.models.base import Model, Params
from fedlm.models.decoding import decoder_of
from fedlm.models.special_tokens import PAD_ID
from fedlm.simulations.generation.sampling import Sampling, choose_tokens

CHUNK = 32
"""Steps that the compiled loop takes at most before the host sees their tokens."""
_LEAST_BUCKET = 16
_Count = Annotated[int, Range(least=1, cap=1 << 30)]
"""Tokens, or prompts: both and their sums are counted in 32 bits."""
_STREAMING_SECONDS = 0.05
"""Who watches is shown tokens about so often, where single steps are faster."""

EndReason = Literal["eos", "max_tokens", "max_length", "stopped"]
"""Why a completion ends: the model said EOS; so many tokens were asked for; the model reads no longer texts; who
watched said so."""

Watcher = Callable[[int, list[int]], bool | None]
"""Called with a prompt's number and all its tokens so far, each time there are more; True ends this completion."""


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """What is generated."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: _Count = 100
    """Most tokens to write. A completion ends before where the model ends the text."""
    batch_size: _Count = 8
    """Prompts that are continued together."""

    def __post_init__(self) -> None:
        check_value_types(self)


class Completion(NamedTuple):
    """What a prompt is continued with.

    Attributes:
      tokens: the new ones, without EOS.
      end: why there are no more.
    """

    tokens: list[int]
    end: EndReason


class Generator:
    """A causal model with its parameters, ready to continue sequences; programs are compiled when they are needed.

    Example:
      >>> import fedlm
      >>> model = fedlm.create_model("cifg_tiny", vocabulary_size=50)
      >>> generator = Generator(model, model.init(jax.random.key(0)))
      >>> [completion] = generator.generate([[1, 4, 5]], GenerationSettings(max_tokens=3))
      >>> len(completion.tokens) <= 3
      True
    """

    def __init__(self, model: Model, params: Params):
        """Prepare parameters for the steps.

        Args:
          model: a causal one.
          params: its parameters, as its `init` makes them.

        Raises:
          ConfigurationError: the model does not predict the next token.
        """
        self.model = model
        self._decoder = decoder_of(model)
        self._weights = jax.jit(self._decoder.prepare)(params)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        settings: GenerationSettings,
        watch: Watcher | None = None,
        observe: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Completion]:
        """Continue sequences of token ids.

        Args:
          prompts: at least one token each, BOS first where the model was trained so.
          settings: how.
          watch: sees tokens as they come, in chunks, and may end completions.
          observe: called with how many completions are done, and how many there are in all.

        Returns:
          A completion of each, in the same order, which do not depend on each other.

        Raises:
          ConfigurationError: a prompt is empty, or longer than the model reads.
        """
        limits = [self._limit(number, len(prompt), settings.max_tokens) for number, prompt in enumerate(prompts)]
        # Prompts of about the same length share a batch, so that little of it is padding.
        order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
        rows = min(settings.batch_size, len(prompts))
        found: dict[int, Completion] = {}
        for start in range(0, len(order), rows or 1):
            numbers = order[start : start + rows]
            found |= self._batch(
                {number: prompts[number] for number in numbers}, rows, limits, settings=settings, watch=watch
            )
            observe(len(found), len(prompts))
        return [found[number] for number in range(len(prompts))]

    def _limit(self, number: int, length: int, max_tokens: int) -> int:
        longest = self._decoder.max_length
        if not length:
            raise ConfigurationError(f"prompt {number} has no token; begin it with BOS at least")
        if longest is None:
            return max_tokens
        if length > longest:
            raise ConfigurationError(
                f"prompt {number} has {length} tokens, and model {self.model.name!r} reads at most {longest}; cut it"
            )
        # The last token that is written is not read.
        return min(max_tokens, longest - length + 1)

    def _batch(
        self,
        prompts: dict[int, Sequence[int]],
        rows: int,
        limits: list[int],
        *,
        settings: GenerationSettings,
        watch: Watcher | None,
    ) -> dict[int, Completion]:
        numbers = list(prompts)
        tokens, counts = _lay_out(list(prompts.values()), rows, self._decoder.max_length)
        own_limits = np.array([limits[number] for number in numbers] + [0] * (rows - len(numbers)), np.int32)
        root = device_key(settings.sampling.seed, "generation")
        keys = jax.vmap(functools.partial(jax.random.fold_in, root))(np.resize(np.array(numbers), rows))
        most_written = min(settings.max_tokens, self._decoder.max_length or settings.max_tokens)
        steps = _Steps(self.model, settings.sampling, tokens.shape[1] + most_written - 1)
        state = _read_prompts(steps, self._weights, tokens=tokens, counts=counts, limits=own_limits, keys=keys)
        written: list[list[int]] = [[] for _ in numbers]
        chunk = np.asarray(state.last)[:, None]
        ends: dict[int, EndReason] = {}
        most = 1 if watch else CHUNK
        while True:
            for row, number in enumerate(numbers):
                if row not in ends:
                    end = self._take(written[row], chunk[row], limits[number], settings.max_tokens)
                    stopped = watch and watch(number, written[row])
                    if end or stopped:
                        ends[row] = end or "stopped"
            if len(ends) == len(numbers):
                break
            going = np.array([row < len(numbers) and row not in ends for row in range(rows)])
            started = time.perf_counter()
            state, written_now, done = _take_steps(steps, self._weights, state, going, most=np.int32(most))
            chunk = np.asarray(written_now)[:, : int(done)]
            if watch and time.perf_counter() - started < _STREAMING_SECONDS:
                most = min(2 * most, CHUNK)
        return {number: Completion(written[row], ends[row]) for row, number in enumerate(numbers)}

    def _take(self, written: list[int], new: NDArray[np.int32], limit: int, max_tokens: int) -> EndReason | None:
        """Add a row's new tokens to those that it has, as far as it goes; returns why it ends, if it does."""
        for token in new.tolist():
            if token == self.model.special_tokens.eos:
                return "eos"
            written.append(token)
            if len(written) == limit:
                return "max_tokens" if limit == max_tokens else "max_length"
        return None


def _lay_out(
    prompts: Sequence[Sequence[int]], rows: int, longest: int | None
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Lay prompts out in rows, int32 [rows, bucket], PAD after them, and int32 [rows], their lengths.

    Rows beyond the prompts are the last one's again.
    """
    filled = [*prompts, *[prompts[-1]] * (rows - len(prompts))]
    most = max(map(len, filled))
    bucket = _bucket(most)
    tokens = np.full((rows, bucket if longest is None else max(most, min(bucket, longest))), PAD_ID, np.int32)
    for row, prompt in enumerate(filled):
        tokens[row, : len(prompt)] = prompt
    return tokens, np.array([len(prompt) for prompt in filled], np.int32)


def _bucket(length: int) -> int:
    """Round a length up, to 16, 24, 32, 48, 64, 96 and so on: few programs, and at most a third of a row is padding."""
    power = max(_LEAST_BUCKET, 1 << (length - 1).bit_length())
    return power * 3 // 4 if power > _LEAST_BUCKET and length <= power * 3 // 4 else power


class _Steps(NamedTuple):
    """What programs are compiled for."""

    model: Model
    sampling: Sampling
    columns: int  # most tokens that are read of a row, padding among them


class _Rows(NamedTuple):
    """What a step leaves."""

    decoder: Any  # what the decoder goes on with
    last: jax.Array  # int32 [rows], the token that was chosen last, which is not read yet
    written: jax.Array  # int32 [rows], how many tokens were chosen
    going: jax.Array  # bool [rows], whether there will be more
    limits: jax.Array  # int32 [rows], most tokens to choose
    keys: jax.Array  # PRNG keys [rows]


@functools.partial(jax.jit, static_argnums=0)
def _read_prompts(
    steps: _Steps, weights: Params, *, tokens: jax.Array, counts: jax.Array, limits: jax.Array, keys: jax.Array
) -> _Rows:
    """Read the prompts, and choose the first tokens."""
    decoder = decoder_of(steps.model)
    logits, state = decoder.read(weights, decoder.begin(weights, len(tokens), steps.columns), tokens, counts)
    none = jnp.zeros(len(tokens), jnp.int32)
    return _chosen(steps, _Rows(state, none, none, limits > 0, limits, keys), logits, state)


def _chosen(steps: _Steps, rows: _Rows, logits: jax.Array, state: Any) -> _Rows:
    keys = jax.vmap(jax.random.fold_in)(rows.keys, rows.written)
    last = choose_tokens(logits, keys, steps.sampling)
    written = rows.written + rows.going
    going = rows.going & (last != steps.model.special_tokens.eos) & (written < rows.limits)
    return rows._replace(decoder=state, last=last, written=written, going=going)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _take_steps(
    steps: _Steps, weights: Params, rows: _Rows, going: jax.Array, *, most: jax.Array
) -> tuple[_Rows, jax.Array, jax.Array]:
    """Take up to `most` steps, at most CHUNK; returns also the tokens, int32 [rows, CHUNK], and how many steps."""
    decoder = decoder_of(steps.model)

    def step(carry: tuple[_Rows, jax.Array, jax.Array]) -> tuple[_Rows, jax.Array, jax.Array]:
        rows, tokens, done = carry
        counts = rows.going.astype(jnp.int32)
        logits, state = decoder.read(weights, rows.decoder, rows.last[:, None], counts)
        rows = _chosen(steps, rows, logits, state)
        return rows, jax.lax.dynamic_update_slice(tokens, rows.last[:, None], (0, done)), done + 1

    def goes_on(carry: tuple[_Rows, jax.Array, jax.Array]) -> jax.Array:
        rows, _, done = carry
        return rows.going.any() & (done < most)

    tokens = jnp.zeros((len(going), CHUNK), jnp.int32)
    return jax.lax.while_loop(goes_on, step, (rows._replace(going=rows.going & going), tokens, jnp.int32(0)))
