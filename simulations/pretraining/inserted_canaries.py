"""Random sequences that are planted into what a model is pretrained on, each several times over.

They follow from a few settings alone, so that whoever has the run's record knows them (the "canaries" of Carlini et al.
2019, "The secret sharer").
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.composed_settings import settings_as_json
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.number_ranges import Count, CountOrZero
from fedlm.fl_core.randomness import host_rng
from fedlm.fl_core.runs.capabilities.interface import Capability, Opening
from fedlm.models.special_tokens import OOV_ID, OWN, PAD_ID, SpecialTokens
from fedlm.simulations.pretraining.batches.privacy_units import Units

_FIRST_WORD = OOV_ID + 1


@dataclass(frozen=True, kw_only=True)
class CanarySettings:
    """Canaries, by which memorisation is measured."""

    canaries: CountOrZero = 0
    """Plant this many random sequences in the training data, for each of canary-repeats. `fedlm memorization` then says
    how well the model knows them."""
    canary_repeats: Annotated[tuple[Count, ...], OnlyWith("canaries")] = (1, 4, 16)
    """How many times each canary stands in the data, each time as a unit of its own."""


class Canaries(Capability):
    """A run with canaries among what it is trained on."""

    def __init__(self, canaries: "InsertedCanaries"):
        """Plant canaries."""
        self._canaries = canaries

    @classmethod
    def of(cls, opening: Opening) -> "Canaries | None":
        assert opening.data is not None
        settings = settings_as_json(opening.settings)
        found = canaries_of(settings, opening.data.vocabulary_size, opening.data.special_tokens)
        return None if found is None else cls(found)

    def data(self, train: Units) -> Units:
        return with_canaries(train, self._canaries)


@dataclass(frozen=True)
class InsertedCanaries:
    """What is planted."""

    number: int  # different canaries for each of `repeats`
    repeats: tuple[int, ...]  # how many times a canary stands in the data, each time as a unit of its own
    # tokens that the model reads in one sequence; a canary fills it, with BOS before and EOS after its words
    length: int
    vocabulary_size: int
    seed: int  # of the run; not negative
    special_tokens: SpecialTokens = OWN  # of the vocabulary

    def __post_init__(self) -> None:
        if self.number < 1:
            raise ConfigurationError(f"{setting('canaries')} is {self.number}, but must be at least 1")
        if not self.repeats or min(self.repeats) < 1 or len(set(self.repeats)) < len(self.repeats):
            raise ConfigurationError(
                f"{setting('canary_repeats')} is {self.repeats}, but must have at least one number, each only once "
                "and at least 1"
            )
        if self.length < 2:
            raise ConfigurationError(f"{setting('length')} is {self.length}, but canaries need at least 2")

    @property
    def possible_bits(self) -> float:
        """The logarithm to base 2 of the number of sequences of this form, which no exposure exceeds."""
        return (self.length - 1) * math.log2(self.vocabulary_size - _FIRST_WORD)

    def sequences(self) -> NDArray[np.int32]:
        """Draw the canaries, int32 [repeats, number, length + 1]: those of `repeats[0]` first."""
        rng = host_rng(self.seed, "inserted canaries")
        drawn = self._random(rng, self.number * len(self.repeats))
        return drawn.reshape(len(self.repeats), self.number, self.length + 1)

    def references(self, number: int) -> NDArray[np.int32]:
        """Draw sequences that were not planted, of the same form: int32 [number, length + 1]."""
        return self._random(host_rng(self.seed, "canary references"), number)

    def _random(self, rng: np.random.Generator, number: int) -> NDArray[np.int32]:
        return random_sequences(rng, number, self.length, self.vocabulary_size, special_tokens=self.special_tokens)

    def planted(self) -> NDArray[np.int32]:
        """Return what each of the units that are added holds: int32 [units, length + 1]."""
        groups = zip(self.sequences(), self.repeats, strict=True)
        return np.concatenate([np.repeat(sequences, repeats, axis=0) for sequences, repeats in groups])


def canaries_of(
    settings: Mapping[str, Any], vocabulary_size: int, special_tokens: SpecialTokens = OWN
) -> InsertedCanaries | None:
    """Read from the settings of a run which canaries it was trained on; None where there are none.

    The settings are JSON-able, with `length` and `seed`; `canaries` says how many there are for each of
    `canary_repeats`.
    """
    if not settings.get("canaries"):
        return None
    return InsertedCanaries(
        number=settings["canaries"],
        repeats=tuple(settings["canary_repeats"]),
        length=settings["length"],
        vocabulary_size=vocabulary_size,
        seed=settings["seed"],
        special_tokens=special_tokens,
    )


def with_canaries(units: Units, canaries: InsertedCanaries) -> Units:
    """Add canaries of the same length to privacy units, as the last of them; each repeat is a unit with one
    sequence."""
    if type(units) is not Units:
        raise ConfigurationError(
            f"{setting('canaries')} are units of their own, which {setting('sampling')} examples does not draw; leave "
            "one of them out"
        )
    if units.length != canaries.length:
        raise ValueError(f"units of length {units.length} and canaries of length {canaries.length}")
    fields = {field.name: getattr(units, field.name) for field in dataclasses.fields(Units)}
    return UnitsWithCanaries(**fields, canaries=canaries, planted=canaries.planted())


@dataclass(frozen=True, eq=False)
class UnitsWithCanaries(Units):
    """Privacy units of which the last are canaries; made by `with_canaries`."""

    canaries: InsertedCanaries
    planted: NDArray[np.int32]  # int32 [canary units, length + 1]

    @property
    def count(self) -> int:
        return super().count + len(self.planted)

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"canary_units": len(self.planted)}

    def sequences(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        indices = np.asarray(indices, np.int64)
        if len(indices) and not (indices.min() >= 0 and indices.max() < self.count):
            raise IndexError(f"units {indices.min()} to {indices.max()}, but there are {self.count}")
        place = indices - super().count
        inserted = place >= 0
        tokens = np.full((len(indices), self.sequences_per_unit, self.length + 1), PAD_ID, np.int32)
        weight = np.zeros((len(indices), self.sequences_per_unit), np.float32)
        tokens[~inserted], weight[~inserted] = super().sequences(indices[~inserted])
        tokens[inserted, 0], weight[inserted, 0] = self.planted[place[inserted]], 1.0
        return tokens, weight

    def _lengths(self, indices: NDArray[np.int64], reads_last: bool) -> NDArray[np.int64]:
        stored = indices < super().count
        lengths = np.full(len(indices), self.length)
        lengths[stored] = super()._lengths(indices[stored], reads_last)
        return lengths

    def completion_starts(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        indices = np.asarray(indices, np.int64)
        inserted = indices >= super().count
        starts = np.ones((len(indices), self.sequences_per_unit), np.int32)
        starts[~inserted] = super().completion_starts(indices[~inserted])
        return starts


def random_sequences(
    rng: np.random.Generator, number: int, length: int, vocabulary_size: int, *, special_tokens: SpecialTokens = OWN
) -> NDArray[np.int32]:
    """Draw sequences of random words, int32 [number, length + 1]: BOS, `length - 1` words, each token as likely as any
    other but the special ones, and EOS."""
    words = rng.integers(_FIRST_WORD, vocabulary_size, (number, length - 1))
    ends = np.full((number, 1), special_tokens.eos)
    return np.concatenate([np.full((number, 1), special_tokens.bos), words, ends], axis=1).astype(np.int32)
