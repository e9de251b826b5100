"""The examples of one client, and the fixed-length sequences that models are trained on."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlm.models.special_tokens import OWN, SpecialTokens


@dataclass(frozen=True, slots=True)
class ClientExamples:
    """The token sequences of one client, as a ragged array.

    Args:
      values: uint16 or uint32 `[num_tokens]`, the client's tokens, example after example, without BOS and EOS.
      stored_offsets: integer `[num_examples + 1]`, where the examples begin and end, counted from
        `stored_offsets[0]`. A store hands out its own offsets here, so nothing is copied.
      prompt_lengths: integer `[num_examples]`, how many of each example's tokens are a prompt, which what follows
        completes; None where no example has one.
    """

    values: NDArray[np.unsignedinteger]
    stored_offsets: NDArray[np.signedinteger]
    prompt_lengths: NDArray[np.signedinteger] | None = None

    @classmethod
    def from_sequences(cls, sequences: Sequence[ArrayLike], dtype: np.typing.DTypeLike = np.uint16) -> "ClientExamples":
        """Copy a list of token sequences into one ragged array."""
        arrays = [np.asarray(sequence, dtype) for sequence in sequences]
        offsets = np.zeros(len(arrays) + 1, np.int64)
        np.cumsum([array.size for array in arrays], out=offsets[1:])
        return cls(np.concatenate([np.empty(0, dtype), *arrays]), offsets)

    @property
    def offsets(self) -> NDArray[np.signedinteger]:
        """Integer `[num_examples + 1]`: example j is `values[offsets[j]:offsets[j + 1]]`; computed anew."""
        return self.stored_offsets - self.stored_offsets[0]

    @property
    def lengths(self) -> NDArray[np.signedinteger]:
        """Integer `[num_examples]`: the number of tokens of each example; computed anew."""
        return np.diff(self.stored_offsets)

    @property
    def num_examples(self) -> int:
        """The number of the client's examples."""
        return len(self.stored_offsets) - 1

    @property
    def num_tokens(self) -> int:
        """The number of the client's tokens, BOS and EOS not counted."""
        return len(self.values)

    def example(self, index: int) -> NDArray[np.unsignedinteger]:
        """Return the tokens of one example, a view; IndexError where the client has no such example."""
        if not 0 <= index < self.num_examples:
            raise IndexError(f"example {index} of a client with {self.num_examples} examples")
        start, stop = self.stored_offsets[index : index + 2] - self.stored_offsets[0]
        return self.values[start:stop]


def padded_sequences(
    examples: ClientExamples,
    length: int,
    *,
    rows: NDArray[np.integer] | None = None,
    special_tokens: SpecialTokens = OWN,
    last: bool = False,
) -> NDArray[np.int32]:
    """Return examples as `[BOS] w1 .. wk [EOS]`, cut or padded with PAD to `length + 1` tokens.

    EOS is cut off with the rest where `k + 2 > length + 1`. Of a prompt as much is left out first, from its beginning,
    as its completion and EOS need. With `last`, the last `length` tokens of any example are taken, and no EOS follows
    them: what has gone on until now has not ended.

    Args:
      examples: the client's examples.
      length: tokens a model reads in one sequence, at least 1.
      rows: integer `[n]`, the examples to return, in this order; all of them by default.
      special_tokens: of the vocabulary.
      last: see above.

    Returns:
      int32 `[n, length + 1]`; inputs are `[:, :-1]`, targets `[:, 1:]`.

    Raises:
      ValueError: `length` is below 1.
      IndexError: a row is not an example of the client.
    """
    if length < 1:
        raise ValueError(f"length is {length}, expected at least 1")
    starts, lengths = examples.offsets[:-1], examples.lengths
    if last or examples.prompt_lengths is not None:
        cut = _cut(examples, length, last)
        starts, lengths = starts + cut, lengths - cut
    if rows is not None:
        starts, lengths = starts[rows], lengths[rows]
    positions = np.arange(-1, length, dtype=starts.dtype)  # the first column is for BOS
    values = examples.values if examples.num_tokens else np.zeros(1, np.uint16)
    # Reading past an example's end gives other tokens, which the product with 0 turns into PAD.
    padded = values.take(starts[:, None] + positions, mode="clip").astype(np.int32)
    padded *= positions < lengths[:, None]
    padded[:, 0] = special_tokens.bos
    if last:
        return padded
    ended = np.flatnonzero(lengths < length)
    padded[ended, lengths[ended] + 1] = special_tokens.eos
    return padded


def cut_of_prompts(
    lengths: NDArray[np.integer], prompt_lengths: NDArray[np.integer], length: int
) -> NDArray[np.integer]:
    """Say how many tokens are left out at the beginning of each prompt, integer `[n]`, so that what is left of it, its
    completion, BOS and EOS are `length + 1` tokens, or there is nothing left of it.

    Args:
      lengths: integer `[n]`, tokens of prompt and completion together.
      prompt_lengths: integer `[n]`, tokens of the prompt.
      length: tokens a model reads in one sequence.
    """
    return np.clip(lengths + 1 - length, 0, prompt_lengths)


def _cut(examples: ClientExamples, length: int, last: bool) -> NDArray[np.integer]:
    """Say how many tokens are left out at the beginning of each example, integer `[num_examples]`."""
    if last:
        return np.maximum(examples.lengths - length, 0)
    assert examples.prompt_lengths is not None
    return cut_of_prompts(examples.lengths, examples.prompt_lengths, length)


def completion_starts(
    examples: ClientExamples, length: int, rows: NDArray[np.integer] | None = None, last: bool = False
) -> NDArray[np.int32] | None:
    """Say where completions begin in the sequences that `padded_sequences` makes of the same: int32 `[n]`, at least 1;
    None where no example has a prompt."""
    if examples.prompt_lengths is None:
        return None
    cut = _cut(examples, length, last)
    starts = np.maximum(1 + examples.prompt_lengths - cut, 1).astype(np.int32)
    return starts if rows is None else starts[rows]


class ClientsFingerprint:
    """The SHA-256 of what clients there are, in their order, and what tokens each has, however they are stored."""

    def __init__(self) -> None:
        self._names, self._lengths, self._tokens, self._prompts = (hashlib.sha256() for _ in range(4))
        self._has_prompts = False

    def add(
        self,
        names: Sequence[str],
        counts: ArrayLike,
        lengths: ArrayLike,
        tokens: ArrayLike,
        *,
        prompt_lengths: ArrayLike | None = None,
    ) -> None:
        """Add some clients.

        Args:
          names: of the clients.
          counts: how many examples each has, int [clients].
          lengths: tokens of each example, client after client, int [examples].
          tokens: of all examples, end to end, integers of any shape.
          prompt_lengths: as `lengths`, of the prompts alone; None where there are none.
        """
        lines = (
            f"{json.dumps(name)} {count}\n" for name, count in zip(names, np.asarray(counts).tolist(), strict=True)
        )
        self._names.update("".join(lines).encode())
        self._lengths.update(np.ascontiguousarray(lengths, "<i4").tobytes())
        self._tokens.update(np.ascontiguousarray(tokens, "<u4").tobytes())
        if prompt_lengths is not None:
            self._has_prompts = True
            self._prompts.update(np.ascontiguousarray(prompt_lengths, "<i4").tobytes())

    def hexdigest(self) -> str:
        """Give the digest of all that was added, in hex."""
        prompts = (self._prompts,) if self._has_prompts else ()
        parts = (self._names, self._lengths, self._tokens, *prompts)
        return hashlib.sha256(b"".join(part.digest() for part in parts)).hexdigest()
