"""Privacy units: what is sampled, clipped and hidden as a whole, each a fixed number of token sequences."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.privacy.origins.vocabulary_origin import PACKED
from fedlm.fl_core.randomness import host_rng
from fedlm.fl_core.rounds.client_examples import cut_of_prompts
from fedlm.models.special_tokens import PAD_ID
from fedlm.simulations.data.grouping import client_digest
from fedlm.simulations.pretraining.batches.token_stream import TokenStream

Unit = Literal["example", "user"]
Packing = Literal["none", "packed"]

_SHORTEST = 8
"""Of the lengths that sequences are padded to; of what is shorter still little is left to be saved."""
_SHORTER_LENGTHS = 3
"""How many of them there are below the greatest: a step is compiled for each."""


@dataclass(frozen=True, eq=False)
class Units:
    """Privacy units, numbered from 0."""

    stream: TokenStream  # the tokens they are cut from
    split: str
    length: int  # tokens that a model reads in one sequence
    kind: Unit  # see `unit` of `open_units`
    packing: Packing  # see `open_units`
    sequences_per_unit: int
    seed: int  # see `open_units`
    without_users: bool  # whether the store was imported without users, so that its clients are documents

    @property
    def noun(self) -> str:
        """What a unit is called in a privacy statement."""
        if self.stream.item_sequences:
            return "user"
        return "document" if self.kind == "user" and self.without_users else self.kind

    @property
    def count(self) -> int:
        """N, the number of units."""
        if self.kind == "user":
            return self.stream.num_clients
        return self._windows(len(self.stream.tokens)) if self.packing == "packed" else self.stream.num_examples

    @property
    def promised_to(self) -> int:
        """To how many a promise is made: to the units, whatever of them is sampled."""
        return self.count

    @property
    def has_completions(self) -> bool:
        """Whether each sequence is a prompt and what completes it, on which alone models are trained."""
        return self.stream.prompt_lengths is not None

    @property
    def unit(self) -> str:
        """What a unit is, in the words of a privacy statement."""
        if self.stream.item_sequences:
            return f"all items of one user (training reads the last {self.length} before those held out)"
        if self.kind == "user":
            most = "1 sequence" if self.sequences_per_unit == 1 else f"{self.sequences_per_unit} sequences"
            each = " with a prompt and its completion" if self.has_completions else ""
            return f"all text of one {self.noun} (training reads at most {most} of {self.length} tokens{each})"
        if self.packing == "packed":
            return f"{PACKED} of {self.length} tokens"
        if self.has_completions:
            return f"one prompt with its completion (training reads at most {self.length} tokens)"
        return f"one example (training reads at most {self.length} tokens)"

    @property
    def protects(self) -> str:
        """What a promise about units covers, and what it does not."""
        if self.stream.item_sequences:
            return (
                "Everything of one user is in one unit. The promise does not cover which users and items there are, "
                "unless it covers the vocabulary of items."
            )
        if self.noun == "document":
            return (
                "The data set was imported without users: each document of a person is a unit of its own. The promise "
                "is per document, not per user."
            )
        if self.kind == "user":
            return "Everything that one user wrote is in one unit."
        if self.packing == "packed":
            return (
                "A document or a user may be in several sequences, and each of these is a unit. A sequence may hold "
                "data of several users. The promise is per sequence, not per document or per user. Neighbouring "
                "sequences share one token."
            )
        return "Each example of a user is a unit of its own. The promise is per example, not per user."

    @property
    def cut(self) -> str | None:
        """Say how many examples are too long for a sequence, and what is left out of them; None where none is."""
        if self.stream.prompt_lengths is None:
            return None
        tokens = np.diff(self.stream.starts)
        longer = int((tokens > self.length + 1).sum())
        if not longer:
            return None
        ended = int((tokens - self.stream.prompt_lengths > self.length + 1).sum())
        return (
            f"{longer:,} of {self.stream.num_examples:,} examples are longer than {self.length} tokens: their prompts "
            f"lose their beginnings; {ended:,} completions are too long by themselves, and lose their ends"
        )

    def describe(self) -> dict[str, Any]:
        """Describe the units for a run's record; JSON-able."""
        return {
            "split": self.split,
            "unit": self.kind,
            "unit_in_words": self.unit,
            "protects": self.protects,
            "packing": self.packing,
            "length": self.length,
            "sequences_per_unit": self.sequences_per_unit,
            "units": self.count,
            "tokens": len(self.stream.tokens),
        }

    def sequences(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the sequences of some units.

        Args:
          indices: int64 [n], from 0 to `count` - 1.

        Returns:
          tokens int32 [n, K, length + 1]: inputs are `[..., :-1]`, targets `[..., 1:]`; PAD where there is no token.
          weight float32 [n, K]: 0 for a sequence that the unit does not have, else 1.

        Raises:
          IndexError: an index is out of range.
        """
        first, starts, stops, present = self._spans(indices)
        tokens = self._cut(starts, stops)
        if self.stream.item_sequences or self.has_completions:
            # What is left out follows BOS.
            tokens[..., 0] = np.where(present, self.stream.tokens.take(first, mode="clip"), PAD_ID)
        return tokens, present.astype(np.float32)

    @property
    def padded_lengths(self) -> tuple[int, ...]:
        """The lengths that units are padded to, ascending, the last one `length`: packed sequences are that long, of
        others no more tokens need to be read than the next greater of these.

        They follow from the settings alone. Did they follow from the data, one unit more could move all others to other
        microbatches.
        """
        if self.packing == "packed":
            return (self.length,)
        shorter = [2**power for power in range(self.length.bit_length()) if _SHORTEST <= 2**power < self.length]
        return (*shorter[-_SHORTER_LENGTHS:], self.length)

    def by_length(self, indices: NDArray[np.int64], reads_last: bool = False) -> list[tuple[int, NDArray[np.int64]]]:
        """Part units by the length that they are padded to.

        Args:
          indices: int64 [n], from 0 to `count` - 1.
          reads_last: whether a model reads the last token of a sequence, too, which others only predict.

        Returns:
          Lengths, ascending, and the units of each in the order of `indices`; none without a unit.
        """
        indices, padded = np.asarray(indices, np.int64), self.padded_lengths
        if len(padded) == 1:
            return [(self.length, indices)] if len(indices) else []
        parts = np.searchsorted(padded, self._lengths(indices, reads_last))
        found = [(length, indices[parts == part]) for part, length in enumerate(padded)]
        return [(length, those) for length, those in found if len(those)]

    def _lengths(self, indices: NDArray[np.int64], reads_last: bool) -> NDArray[np.int64]:
        """Count the tokens that are read in the longest sequence of each unit: int64 [n]."""
        _, starts, stops, _ = self._spans(indices)
        return np.clip(stops - starts - (not reads_last), 0, self.length).max(axis=1)

    def _spans(
        self, indices: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return where in the stream the sequences of some units have their first token, where what is read of them
        begins and ends, and which of them there are, each [n, K]."""
        indices = np.asarray(indices, np.int64)
        if len(indices) and not (indices.min() >= 0 and indices.max() < self.count):
            raise IndexError(f"units {indices.min()} to {indices.max()}, but there are {self.count}")
        starts, stops, present = self._placed(indices)
        if self.stream.item_sequences:
            stops = np.maximum(stops - 1, starts)  # without EOS
            return starts, starts + np.maximum(stops - starts - (self.length + 1), 0), stops, present
        if self.has_completions:
            _, cut = self._prompts(starts)
            return starts, starts + cut, stops, present
        return starts, starts, stops, present

    def completion_starts(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        """Say where completions begin in `sequences` of the same units, where units have them: int32 [n, K], at least
        1."""
        starts, _, _ = self._placed(np.asarray(indices, np.int64))
        lengths, cut = self._prompts(starts)
        return (1 + lengths - cut).astype(np.int32)

    def _placed(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return where in the stream the sequences of some units begin and end, and which of them there are, each
        [n, K]."""
        if self.kind == "user":
            numbers, present = self._chosen(indices)
            starts, stops = self._bounds(indices[:, None], numbers)
            return starts, np.where(present, stops, starts), present
        starts, stops = self._bounds(None, indices[:, None])
        return starts, stops, np.ones((len(indices), 1), bool)

    def _prompts(self, starts: NDArray[np.int64]) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
        """Return how long the prompts of the examples are that begin at `starts` in the stream, integer of its shape,
        and how much of each is left out."""
        assert self.stream.prompt_lengths is not None
        # A user may have no example at all.
        examples = np.minimum(np.searchsorted(self.stream.starts, starts), self.stream.num_examples - 1)
        lengths = self.stream.prompt_lengths[examples]
        tokens = self.stream.starts[examples + 1] - self.stream.starts[examples] - 2  # without BOS and EOS
        return lengths, cut_of_prompts(tokens, lengths, self.length)

    def _windows(self, tokens: Any) -> Any:
        """Return how many windows of length + 1 tokens, each overlapping the next by one, cover some tokens."""
        return -(-(tokens - 1) // self.length)

    def _chosen(self, clients: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the numbers of the clients' sequences, int64 [n, K], and which of them there are.

        Which a client keeps is a function of its name, its own text and the seed, so that no other client's depends on
        it.
        """
        most, count = self.sequences_per_unit, self._counts(clients)
        numbers = np.tile(np.arange(most), (len(clients), 1))
        for row in np.flatnonzero(count > most):
            name = int.from_bytes(client_digest(self.stream.client_id(int(clients[row]))), "big")
            rng = host_rng(self.seed, "sequences of a user", name)
            numbers[row] = np.sort(rng.choice(int(count[row]), most, replace=False))
        present = numbers < count[:, None]
        return np.where(present, numbers, 0), present

    def _counts(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the sequences that clients have, those that they do not keep among them: int64 [n]."""
        first, last = self.stream.first_examples[clients], self.stream.first_examples[clients + 1]
        if self.packing != "packed":
            return last - first
        counts: NDArray[np.int64] = self._windows(self.stream.starts[last] - self.stream.starts[first])
        return counts

    def _bounds(
        self, clients: NDArray[np.int64] | None, numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where sequences begin and end in the stream, given their numbers within clients, or within all."""
        offsets = self.stream.starts
        if clients is None:
            first, last = np.zeros(1, np.int64), np.full(1, self.stream.num_examples)
        else:
            first, last = self.stream.first_examples[clients], self.stream.first_examples[clients + 1]
        if self.packing == "packed":
            starts = offsets[first] + numbers * self.length
            return starts, np.minimum(starts + self.length + 1, offsets[last])
        examples = first + numbers
        return offsets[examples], offsets[np.minimum(examples + 1, last)]

    def _cut(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int32]:
        positions = starts[..., None] + np.arange(self.length + 1)
        # Reading past a sequence's end gives other tokens, which the product with 0 turns into PAD.
        tokens = self.stream.tokens.take(positions, mode="clip").astype(np.int32)
        tokens *= positions < stops[..., None]
        return tokens
