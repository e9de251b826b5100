"""Sequences of users that are sampled, and clipped, one by one, where what is hidden is all that a user has."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.simulations.pretraining.batches.privacy_units import Units


def sequences_of_users(units: Units) -> "SequencesOfUsers":
    """Take users apart, whose sequences beyond the most that one may have stay left out.

    Raises:
      ConfigurationError: each user is one sequence of items.
    """
    if type(units) is not Units or units.kind != "user":
        raise ValueError(f"{type(units).__name__} of the kind {units.kind!r}, but expected Units of users")
    if units.stream.item_sequences:
        raise ConfigurationError(
            f"{setting('sampling')} is examples, but each user is one sequence of items; leave {setting('sampling')} "
            "out"
        )
    fields = {field.name: getattr(units, field.name) for field in dataclasses.fields(Units)}
    return SequencesOfUsers(**fields | {"sequences_per_unit": 1}, users=units)


@dataclass(frozen=True, eq=False)
class SequencesOfUsers(Units):
    """What is drawn and clipped by itself: each sequence that one of the users keeps, numbered user by user. Made by
    `sequences_of_users`.

    Which sequences a user has, and keeps, follows from its own text, name and the seed. Each is of one user.
    """

    users: Units

    @property
    def most_of_user(self) -> int:
        """K, which no user has more sequences than."""
        return self.users.sequences_per_unit

    @cached_property
    def _first(self) -> NDArray[np.int64]:
        """int64 [users + 1]: the number of each user's first sequence, then the number of sequences."""
        kept = np.minimum(self._counts(np.arange(self.users.count)), self.most_of_user)
        return np.concatenate([[0], np.cumsum(kept, dtype=np.int64)])

    def owners(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Say whose sequences these are: int64 [n]."""
        return np.searchsorted(self._first, indices, side="right") - 1

    @property
    def count(self) -> int:
        return int(self._first[-1])

    @property
    def promised_to(self) -> int:
        return self.users.count

    @property
    def unit(self) -> str:
        return self.users.unit

    def describe(self) -> dict[str, Any]:
        drawn = {"sequences_per_unit": self.most_of_user, "units": self.users.count, "sampled_sequences": self.count}
        return super().describe() | drawn

    def _placed(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        users = self.owners(indices)
        starts, stops, present = self.users._placed(users)
        place = (indices - self._first[users])[:, None]
        return tuple(np.take_along_axis(one, place, axis=1) for one in (starts, stops, present))  # type: ignore[return-value]
