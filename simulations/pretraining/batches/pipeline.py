"""From the batches that were drawn to arrays of fixed shapes, prepared ahead by threads."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.extras import extra
from fedlm.models.special_tokens import PAD_ID
from fedlm.simulations.pretraining.batches.privacy_units import Units
from fedlm.simulations.pretraining.batches.sampling import Batches

with extra("pretrain"):
    import grain

PREFETCH = 2
"""Logical batches that are prepared ahead, each by a thread of its own."""
_OF_TOKENS = ("tokens", "inputs", "targets")
"""Fields of batches whose last axis is that of tokens."""


class Transform(Protocol):
    """Turns sequences into what a model's batch has."""

    def __call__(self, step: int, indices: NDArray[np.int64], tokens: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
        """Return the fields of a batch, a pure function of the arguments.

        Args:
          indices: int64 [rows], the units; -1 for a row that only fills the batch.
          tokens: int32 [rows, K, length + 1].

        Returns:
          Arrays [rows, K, ...] by field.
        """
        ...


@dataclass(frozen=True)
class LogicalBatch:
    """The units of one step, in chunks of as many, of which a device takes one at a time."""

    step: int
    size: int  # how many units were drawn, on all processes together; those that only fill chunks are not counted
    positions: int  # tokens that the model reads of them, with padding
    # arrays [rows, K, ...] by name: `tokens`, with `completion_start` where there are prompts, or what a transform made
    # of them; and `weight`, float32 [rows, K], 0 for what only fills a chunk or a unit
    chunks: tuple[dict[str, NDArray[Any]], ...]

    @property
    def num_chunks(self) -> int:
        """The number of chunks; 0 where no unit was drawn."""
        return len(self.chunks)

    def chunk(self, index: int) -> dict[str, NDArray[Any]]:
        """Return the fields and the `weight` of one chunk, arrays [rows, K, ...]."""
        return self.chunks[index]


def logical_batches(
    units: Units,
    batches: Batches,
    *,
    first_step: int,
    steps: int,
    physical_batch: int,
    process_index: int = 0,
    process_count: int = 1,
    transform: Transform | None = None,
    reads_last: bool = False,
    prefetch: int = PREFETCH,
) -> "grain.IterDataset[LogicalBatch]":
    """Make the logical batches of some steps.

    The units of a chunk are all padded to one of `Units.padded_lengths`, those of each length in the order in which
    they were drawn. That order is as random as that of all, and of one length independent of the others', so that one
    unit less is still as if the last of its length had its place.

    The same step gives the same batch wherever iteration begins. `iter(...)` of the result gives an iterator whose
    `get_state()` is a small JSON-able dict; `set_state` on the iterator of an equal pipeline goes on from there.

    Args:
      physical_batch: units in a chunk, on all processes together.
      process_count: how many there are. Each makes `physical_batch / process_count` rows of every chunk.
      transform: makes a batch's fields of the sequences; without it the fields are `tokens`, int32
        [rows, K, length + 1], and where units have prompts `completion_start`, int32 [rows, K].
      reads_last: whether the model reads the last token of a sequence, too, as masked ones do; see `Units.by_length`.
      prefetch: logical batches that are prepared ahead; each takes memory.
    """
    numbers = {
        "first_step": (first_step, 0),
        "steps": (steps, 0),
        "physical_batch": (physical_batch, 1),
        "prefetch": (prefetch, 1),
    }
    _check(numbers, physical_batch, process_index, process_count)
    part = _Part(physical_batch, process_index, process_count)
    make = partial(_logical_batch, units, batches, part, transform=transform, reads_last=reads_last)
    return (
        grain.MapDataset.range(first_step, first_step + steps)
        .map(make)
        .to_iter_dataset(grain.ReadOptions(num_threads=prefetch, prefetch_buffer_size=prefetch))
    )


class _Part(NamedTuple):
    """What a process makes of every chunk."""

    physical_batch: int
    process_index: int
    process_count: int


def _logical_batch(
    units: Units, batches: Batches, part: _Part, step: int, *, transform: Transform | None, reads_last: bool
) -> LogicalBatch:
    physical_batch, process_index, process_count = part
    drawn = batches.draw(step)
    parts = units.by_length(drawn, reads_last)
    laid, lengths = [np.zeros(0, np.int64)], []
    for length, those in parts:
        chunks = -(-len(those) // physical_batch)
        filled = np.full(chunks * physical_batch, -1, np.int64)
        filled[: len(those)] = those
        laid.append(filled.reshape(chunks, process_count, -1)[:, process_index].reshape(-1))
        lengths += [length] * chunks
    indices = np.concatenate(laid)
    tokens, weight = _padded_sequences(units, indices)
    fields: dict[str, NDArray[Any]] = (
        {"tokens": tokens} if transform is None else dict(transform(step, indices, tokens))
    )
    if units.has_completions:
        starts = np.ones(weight.shape, np.int32)
        starts[indices >= 0] = units.completion_starts(indices[indices >= 0])
        fields["completion_start"] = starts
    fields["weight"] = weight
    rows = physical_batch // process_count
    return LogicalBatch(
        step=step,
        size=len(drawn),
        positions=units.sequences_per_unit * sum(length * len(those) for length, those in parts),
        chunks=tuple(
            {
                name: _shortened(name, array[number * rows : (number + 1) * rows], units.length - length)
                for name, array in fields.items()
            }
            for number, length in enumerate(lengths)
        ),
    )


def _shortened(name: str, array: NDArray[Any], left_out: int) -> NDArray[Any]:
    """Leave out so many of the last tokens, all of them PAD, of a field that has tokens."""
    return array[..., : array.shape[-1] - left_out] if name in _OF_TOKENS else array


def _padded_sequences(units: Units, indices: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    present = indices >= 0
    found, found_weight = units.sequences(indices[present])
    tokens = np.full((len(indices), *found.shape[1:]), PAD_ID, np.int32)
    weight = np.zeros((len(indices), units.sequences_per_unit), np.float32)
    tokens[present], weight[present] = found, found_weight
    return tokens, weight


def _check(numbers: dict[str, tuple[int, int]], physical_batch: int, process_index: int, process_count: int) -> None:
    for name, (value, least) in numbers.items():
        if value < least:
            raise ConfigurationError(f"{setting(name)} is {value}, but must be at least {least}")
    if not 0 <= process_index < process_count:
        raise ConfigurationError(f"process_index is {process_index}, but must lie between 0 and {process_count - 1}")
    if physical_batch % process_count:
        raise ConfigurationError(
            f"physical_batch is {physical_batch}, but must be a multiple of the number of processes, {process_count}"
        )
