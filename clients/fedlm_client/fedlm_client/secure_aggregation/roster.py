"""Who is in a secure sum and by what rules: the same for all members, or their masks do not cancel."""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from .canonical import digest
from .keys import Advertisement, AttemptName


class Parameters(NamedTuple):
    """The rules of one sum.

    Attributes:
      neighbours: k, of each member; an even number, or all others.
      threshold: t, shares that give a secret back.
      least_cohort: members of which a sum must be.
      bits: b; sums are taken modulo 2^b.
      length: integers of a vector.
      largest: the largest size of an integer that a client adds, so that no sum wraps; 0 where sums may wrap.
      clip_norm: c, of an update, in its units.
      scale: s, integers to one unit of an update.
      noise: kind of the noise that each client adds; empty without noise.
      variance: of the noise that each client adds to each integer, in integers; 0 without noise.
      rotation: seed of the rotation; empty without one.
    """

    neighbours: int
    threshold: int
    least_cohort: int
    bits: int
    length: int
    largest: int
    clip_norm: float
    scale: float
    noise: str
    variance: float
    rotation: bytes


class RosterFields(NamedTuple):
    """What a roster is made of, and hashed by."""

    name: AttemptName
    parameters: Parameters
    members: tuple[Advertisement, ...]  # a member's index is its place


class Roster(RosterFields):
    """Members of an attempt and its rules, frozen."""

    @cached_property
    def digest(self) -> bytes:
        """D, which every derived key depends on."""
        return digest("roster", self.name, self.parameters, self.members)

    @cached_property
    def ring(self) -> Sequence[int]:
        """The members in the order of hashes that nobody can choose."""
        return sorted(range(len(self.members)), key=lambda index: digest("ring", self.digest, index))

    def neighbours(self, index: int) -> frozenset[int]:
        """Give a member's neighbours: those at most k/2 places away on the ring (a Harary graph), or all others."""
        count, k = len(self.members), self.parameters.neighbours
        if k >= count - 1:
            return frozenset(range(count)) - {index}
        place, ring = self.ring.index(index), self.ring
        steps = (step for one in range(1, k // 2 + 1) for step in (one, -one))
        return frozenset(ring[(place + step) % count] for step in steps)
