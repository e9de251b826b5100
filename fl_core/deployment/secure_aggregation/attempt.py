"""One attempt at a secure sum, as the server sees it: members of five sets, each a part of the one before.

U1 have advertised keys, U2 have dealt shares, the vectors of U3 are in the sum, U4 have signed who these are, U5 have
revealed shares. An attempt does no input or output: who calls it writes what changed before it tells anybody.
"""

import collections
import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from cryptography import x509

from fedlm.fedlm_client.errors import UnsafeSumError
from fedlm.fedlm_client.secure_aggregation.keys import Advertisement, AttemptName, check_advertisement
from fedlm.fedlm_client.secure_aggregation.masks import Words, word
from fedlm.fedlm_client.secure_aggregation.member import Dealing, Dealt, Revealed
from fedlm.fedlm_client.secure_aggregation.roster import Parameters, Roster
from fedlm.fl_core.deployment.secure_aggregation.errors import AbandonedError, NotRecoveredError, RefusedAnswerError
from fedlm.fl_core.deployment.secure_aggregation.recovery import Unmasking, remove_masks, unmasking

Phase = Literal["advertising", "dealing", "masking", "agreeing", "revealing", "finished", "abandoned"]

_SHORTEST_VALIDITY = datetime.timedelta(hours=1)
"""A certificate that ends sooner may have ended when members look, who would all refuse the roster."""
_ENDS_SOON = "its certificate ends within an hour; renew it first"
_OTHER_PLAN = "most members of this exact sum train by another plan, or by none"
_LONGEST_SIGNATURE = 256
"""Bytes, of a member's certificate's key."""


def lost_sum(reason: str) -> str:
    """Say, as a record of a round does, why a round counts that made no sum."""
    return f"its sum may have been seen, and is lost: {reason}"[:256]


def _ends_soon(one: Advertisement) -> bool:
    ends = x509.load_der_x509_certificate(one.certificate).not_valid_after_utc
    return ends < datetime.datetime.now(datetime.UTC) + _SHORTEST_VALIDITY


@dataclass
class SecureAttempt:
    """An attempt, and all that is known of it but for the sum itself.

    Attributes:
      name: of the attempt.
      phase: which answers are taken.
      roster: U1 and the rules, once frozen.
      advertisements: of clients, by the names in their certificates.
      dealings: by index; while dealing, of those so far, then of U2.
      survivors: U3; while masking, those whose vectors are merged so far.
      charged: whether members may send their vectors. Each gives one for a round, and whoever runs the server may
        have a sum of it, so the round counts as released.
      signatures: by index, of U4.
      revealed: by index, of U5.
      culprits: members that have given wrong shares.
      dealers_in_doubt: members whose secrets were not found in shares enough.
      gone: indices of members that have said that they go on no more.
      left_out: why, by the names in certificates of clients that are in no roster though they had advertised.
      reason: why it was abandoned.
    """

    name: AttemptName
    phase: Phase = "advertising"
    roster: Roster | None = None
    advertisements: dict[str, Advertisement] = field(default_factory=dict)
    dealings: dict[int, Dealing] = field(default_factory=dict)
    survivors: frozenset[int] = frozenset()
    charged: bool = False
    signatures: dict[int, bytes] = field(default_factory=dict)
    revealed: dict[int, Revealed] = field(default_factory=dict)
    culprits: frozenset[int] = frozenset()
    dealers_in_doubt: frozenset[int] = frozenset()
    gone: set[int] = field(default_factory=set)
    left_out: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    _places: dict[str, int] = field(default_factory=dict)

    def advertise(self, owner: str, one: Advertisement, authorities: Sequence[x509.Certificate]) -> None:
        """Take a client's keys, which its certificate's key has signed, in place of those that it had before it began
        anew; raises `RefusedAnswerError`."""
        if self.advertisements.get(owner) == one:
            return
        if owner in self.left_out:
            raise RefusedAnswerError(self.left_out[owner])
        self._check_phase("advertising")
        others = [other for name, other in self.advertisements.items() if name != owner]
        keys = {key for other in others for key in (other.sealing_key, other.masking_key)}
        if {one.sealing_key, one.masking_key} & keys:
            raise RefusedAnswerError("these keys of another client are taken already")
        now = datetime.datetime.now(datetime.UTC)
        try:
            named = check_advertisement(self.name, one, authorities, now)
        except UnsafeSumError as error:
            raise RefusedAnswerError(str(error)) from error
        if _ends_soon(one):
            raise RefusedAnswerError(_ENDS_SOON)
        if named != owner or one.sealing_key == one.masking_key:
            raise RefusedAnswerError(f"keys of {named}, sent by {owner}, or one key for both uses")
        self.advertisements[owner] = one

    def withdraw(self, owner: str) -> None:
        """Forget a client's keys, if there are any, before the roster is made."""
        self._check_phase("advertising")
        self.advertisements.pop(owner, None)

    def freeze(self, rules: Callable[[int], Parameters]) -> Roster:
        """Make the roster of all that have advertised and may be members now, with the rules for so many; raises
        `AbandonedError`."""
        self._check_phase("advertising")
        self._leave_out(_ends_soon, _ENDS_SOON)
        try:
            parameters = rules(len(self.advertisements))
            if not parameters.noise:
                # Members refuse to be among those that train by another.
                ((most, _),) = collections.Counter(one.plan for one in self.advertisements.values()).most_common(1)
                self._leave_out(lambda one: one.plan != most, _OTHER_PLAN)
                parameters = rules(len(self.advertisements))
        except AbandonedError as error:
            self._abandon(str(error))
        self._check_count(len(self.advertisements), parameters)
        self.roster, self.phase = Roster(self.name, parameters, tuple(self.advertisements.values())), "dealing"
        self._places = {owner: index for index, owner in enumerate(self.advertisements)}
        return self.roster

    def index(self, owner: str) -> int:
        """Look up a member by the name in its certificate; raises `RefusedAnswerError` where it is none."""
        index = self._places.get(owner)
        if index is None:
            raise RefusedAnswerError(f"{owner} is no member of this attempt")
        return index

    def deal(self, index: int, dealing: Dealing) -> None:
        """Take a member's shares for its neighbours; raises `RefusedAnswerError`."""
        if self.dealings.get(index) == dealing:
            return
        self._check_phase("dealing")
        if index in self.dealings:
            raise RefusedAnswerError("this member has dealt other shares before")
        if dealing.sealed.keys() != self._frozen_roster().neighbours(index):
            raise RefusedAnswerError("shares for others than this member's neighbours")
        self.dealings[index] = dealing

    def close_dealing(self) -> None:
        """Take no more shares: who has dealt is U2; raises `AbandonedError`."""
        self._check_phase("dealing")
        self._check_count(len(self.dealings), self._frozen_roster().parameters)
        self.phase, self.charged = "masking", True

    def leave(self, owner: str) -> None:
        """Note that a client goes on no more; where it is no member, nothing follows."""
        if self.roster is not None and owner in self.advertisements:
            self.gone.add(self.index(owner))

    def refuse(self, index: int, senders: frozenset[int]) -> None:
        """Note that a member goes on no more, since it cannot open shares that its neighbours sealed for it; raises
        `RefusedAnswerError`."""
        self._check_phase("masking")
        if index in self.gone or not senders <= self.dealt_for(index).sealed.keys():
            raise RefusedAnswerError("this member goes on no more, or was not sent these shares")
        self.gone.add(index)

    def dealt_for(self, index: int) -> Dealt:
        """Give a member what it needs to mask its vector; raises `RefusedAnswerError`."""
        if self.phase in ("advertising", "dealing") or index not in self.dealings:
            raise RefusedAnswerError("shares are not dealt yet, or not by this member")
        near = self._frozen_roster().neighbours(index) & self.dealings.keys()
        return Dealt(frozenset(self.dealings), {one: self.dealings[one].sealed[index] for one in near})

    @property
    def dealers(self) -> set[str]:
        """Names in certificates of who has dealt, and sends a vector where the attempt is charged."""
        return {owner for index, owner in enumerate(self.advertisements) if index in self.dealings}

    def merge(self, total: Words, members: frozenset[int], partial: Words) -> None:
        """Add a partial sum of masked vectors to the sum, in place, with the members whose vectors it is of.

        Raises:
          RefusedAnswerError: a member has dealt no shares, or is in the sum already; nothing of it was added.
        """
        self._check_phase("masking")
        if not members <= self.dealings.keys() or members & self.survivors or partial.shape != total.shape:
            raise RefusedAnswerError("a partial sum of members that have dealt no shares, or count already")
        total += partial
        self.survivors |= members

    def announce(self) -> frozenset[int]:
        """Take no more vectors: whose are merged is U3; raises `AbandonedError`."""
        self._check_phase("masking")
        rules = self._frozen_roster().parameters
        self._check_count(len(self.survivors), rules)
        for one in self.dealings:
            near = self._frozen_roster().neighbours(one) & self.survivors
            # Nothing of a member without a survivor beside it is in the sum.
            if len(near) < rules.threshold and (near or one in self.survivors):
                self._abandon(f"{len(near)} neighbours of a member are left, but {rules.threshold} must be")
        self.phase = "agreeing"
        return self.survivors

    def agree(self, index: int, signature: bytes) -> None:
        """Take a survivor's signature of who has dealt and who survives; raises `RefusedAnswerError`."""
        if self.signatures.get(index) == signature:
            return
        self._check_phase("agreeing")
        if index not in self.survivors or index in self.signatures or len(signature) > _LONGEST_SIGNATURE:
            raise RefusedAnswerError("no survivor, or one that has signed something else before, or no signature")
        self.signatures[index] = signature

    def close_agreeing(self) -> None:
        """Take no more signatures: who has signed is U4."""
        self._check_phase("agreeing")
        self.phase = "revealing"

    def signatures_for(self, index: int) -> dict[int, bytes]:
        """Give a member that has signed all signatures; raises `RefusedAnswerError`."""
        if self.phase not in ("revealing", "finished") or index not in self.signatures:
            raise RefusedAnswerError("signatures are not all there yet, or none is of this member")
        return self.signatures

    def reveal(self, index: int, revealed: Revealed) -> None:
        """Take a survivor's shares; raises `RefusedAnswerError`."""
        if self.revealed.get(index) == revealed:
            return
        self._check_phase("revealing")
        near = self._frozen_roster().neighbours(index) & self.dealings.keys()
        asked = (near & self.survivors, near - self.survivors)
        if index not in self.survivors or index in self.revealed:
            raise RefusedAnswerError("no survivor, or one that has revealed other shares before")
        if (revealed.own_masks.keys(), revealed.masking_keys.keys()) != asked:
            raise RefusedAnswerError("shares of other members than those that were asked for")
        self.revealed[index] = revealed

    def finish(self, total: Words) -> Unmasking:
        """Remove the masks from the sum, in place: residues modulo 2^b of the survivors' integers.

        Raises:
          AbandonedError: a secret cannot be recovered.
        """
        self._check_phase("revealing")
        roster = self._frozen_roster()
        hashes = {index: dealing.commitment for index, dealing in self.dealings.items()}
        try:
            secrets = unmasking(roster, hashes, self._shares())
        except NotRecoveredError as error:
            self.culprits, self.dealers_in_doubt = error.culprits, error.dealers
            self._abandon(str(error))
        remove_masks(total, roster, secrets)
        if roster.parameters.bits < 8 * total.itemsize:
            np.bitwise_and(total, total.dtype.type((1 << roster.parameters.bits) - 1), out=total)
        self.phase, self.culprits = "finished", secrets.culprits
        return secrets

    def abandon(self, reason: str) -> None:
        """Give the attempt up, as where a partial sum or the process that held the sum is lost."""
        self.phase, self.reason = "abandoned", reason

    def empty_sum(self) -> Words:
        """Make the sum of nothing."""
        rules = self._frozen_roster().parameters
        return np.zeros(rules.length, word(rules.bits))

    def _shares(self) -> tuple[dict[int, dict[int, bytes]], dict[int, dict[int, bytes]]]:
        """Put shares together by whose secret they are of: own masks, and masking keys that are in the sum."""
        own: dict[int, dict[int, bytes]] = {one: {} for one in self.survivors}
        roster, dropped = self._frozen_roster(), self.dealings.keys() - self.survivors
        keys: dict[int, dict[int, bytes]] = {one: {} for one in dropped if roster.neighbours(one) & self.survivors}
        for giver, revealed in self.revealed.items():
            for one, share in revealed.own_masks.items():
                own[one][giver] = share
            for one, share in revealed.masking_keys.items():
                keys[one][giver] = share
        return own, keys

    def _leave_out(self, whom: Callable[[Advertisement], bool], reason: str) -> None:
        for owner in [owner for owner, one in self.advertisements.items() if whom(one)]:
            self.left_out[owner] = reason
            del self.advertisements[owner]

    def _frozen_roster(self) -> Roster:
        if self.roster is None:
            raise RefusedAnswerError("the roster is not frozen yet")
        return self.roster

    def _check_phase(self, phase: Phase) -> None:
        if self.phase != phase:
            raise RefusedAnswerError(f"the attempt is {self.phase}, not {phase}")

    def _check_count(self, found: int, rules: Parameters) -> None:
        if found < rules.least_cohort:
            self._abandon(f"{found} members are left, but {rules.least_cohort} must be")

    def _abandon(self, reason: str) -> None:
        self.abandon(reason)
        raise AbandonedError(reason)
