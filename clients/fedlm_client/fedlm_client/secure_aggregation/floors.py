"""What a client asks of a secure sum, whatever the server says."""

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509

from ..distributed_noise.bounds import rounded_norm_squared
from ..errors import UnsafeSumError
from .graph_rule import corrupt_neighbours, is_connected, least_threshold
from .keys import check_advertisement
from .masks import LEAST_BITS, MOST_BITS
from .roster import Parameters, Roster


@dataclass(frozen=True)
class Floors:
    """The least that a client asks for.

    Attributes:
      least_cohort: members of a roster, and of a sum.
      corrupt_share: of the members, who may work with the server.
      dropped_share: of the members, who may drop out, and be said to.
      noise_multiplier: of the noise of `least_cohort` members without all corrupt ones of the roster, in lengths of the
        longest vector of integers that one adds; 0 asks for none.
    """

    least_cohort: int = 10
    corrupt_share: float = 0.05
    dropped_share: float = 0.1
    noise_multiplier: float = 0.0

    def check(self, roster: Roster, authorities: Sequence[x509.Certificate], now: datetime.datetime) -> None:
        """Check rules and members; raises `UnsafeSumError`, which says what is below what this client asks for."""
        self._check_rules(roster.parameters, len(roster.members))
        names, keys = set(), set()
        for one in roster.members:
            names.add(check_advertisement(roster.name, one, authorities, now))
            keys |= {one.sealing_key, one.masking_key}
        if len(names) < len(roster.members) or len(keys) < 2 * len(roster.members):
            raise UnsafeSumError("the roster has a name or a key twice")

    def check_survivors(self, roster: Roster, survivors: frozenset[int]) -> None:
        """Refuse survivors of whom some honest ones may be apart, whoever chose who drops out; see `check`."""
        count, half = len(roster.members), roster.parameters.neighbours // 2
        if roster.parameters.neighbours == count - 1:
            return
        bad = corrupt_neighbours(count, half, math.floor(self.corrupt_share * count))
        alive = [one in survivors for one in roster.ring]
        if min(sum((alive + alive)[start : start + half]) for start in range(count)) <= bad:
            _refuse(f"a sum without {half - bad} of {half} members side by side", "fewer to be missing")

    def check_signers(self, roster: Roster, signers: int) -> None:
        """Refuse a story that so many signed, if as many could have signed another: the corrupt ones sign both."""
        count = len(roster.members)
        least = (count + math.floor(self.corrupt_share * count)) // 2 + 1
        if signers < least:
            _refuse(f"shares for a sum that {signers} of {count} members have signed", f"{least} at least")

    def _check_rules(self, rules: Parameters, members: int) -> None:
        corrupt, dropped = math.floor(self.corrupt_share * members), math.floor(self.dropped_share * members)
        k, t = rules.neighbours, rules.threshold
        if not self.least_cohort <= rules.least_cohort <= members:
            _refuse(f"a sum of {rules.least_cohort} of {members} members", f"{self.least_cohort} at least")
        if not 2 <= k < members or (k % 2 and k != members - 1) or not is_connected(members, k, corrupt + dropped):
            _refuse(f"{k} neighbours of {members} members", "an even number with which honest ones stay connected")
        if not (least := least_threshold(members, k, corrupt)) <= t <= k:
            _refuse(f"{t} shares that give a secret back", f"{least} at least, and at most {k} neighbours")
        if not LEAST_BITS <= rules.bits <= MOST_BITS:
            _refuse(f"a modulus of 2^{rules.bits}", f"2^{LEAST_BITS} to 2^{MOST_BITS}")
        if rules.largest < 0 or 2 * rules.largest * members >= 1 << rules.bits:
            _refuse(f"integers up to {rules.largest} modulo 2^{rules.bits}", "sums that do not wrap")
        sizes = (rules.clip_norm, rules.scale, rules.variance)
        if not all(map(math.isfinite, sizes)) or min(sizes[:2]) <= 0 or rules.variance < 0:
            _refuse(f"clip norm, scale and variance {sizes}", "finite, positive numbers")
        if rules.length < 1 or rules.clip_norm * rules.scale >= 1 << MOST_BITS:
            _refuse(
                f"{rules.length} integers, {rules.scale:g} to a unit of {rules.clip_norm:g}", "fewer, and at least 1"
            )
        honest = max(0, rules.least_cohort - corrupt)
        noise = math.sqrt(rules.variance * honest) / _longest(rules)
        if noise < self.noise_multiplier:
            _refuse(f"a noise multiplier of {noise:.4g}", f"{self.noise_multiplier:.4g} at least")


def _longest(rules: Parameters) -> float:
    """Bound the L2 norm of a client's integers, so that a coarse scale does not pass for much noise."""
    return math.sqrt(rounded_norm_squared(rules.clip_norm * rules.scale, rules.length))


def _refuse(found: str, expected: str) -> None:
    raise UnsafeSumError(f"the server asks for {found}, but this client expects {expected}")
