"""A client's part in one attempt at a secure sum: five answers, each given once.

What it is asked again it answers with the same bytes; what contradicts what it was asked before it refuses, and says no
more in this attempt.
"""

import datetime
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from ..errors import UnsafeSumError
from . import shamir
from .canonical import digest
from .floors import Floors
from .keys import (
    Advertisement,
    AttemptName,
    Identity,
    has_signed,
    mask_key,
    opened,
    public_of,
    sealed,
    sealing_info,
    shared_key,
    story_of,
)
from .masks import add_mask, packed, word
from .roster import Parameters, Roster


class Dealing(NamedTuple):
    """Shares of a member's two secrets, for its neighbours."""

    sealed: dict[int, bytes]  # by the neighbour's index, encrypted for it
    commitment: bytes  # SHA-256 of the secret of its own mask


class Dealt(NamedTuple):
    """Whose shares have arrived, and those for one member."""

    members: frozenset[int]  # U2
    sealed: dict[int, bytes]  # by the sender's index: its neighbours among them


class Revealed(NamedTuple):
    """One share for each neighbour that has dealt: of its own mask where it survives, else of its masking key."""

    own_masks: dict[int, bytes]
    masking_keys: dict[int, bytes]


class SpoiledSharesError(UnsafeSumError):
    """Sealed shares cannot be opened: they were changed on their way, or are of another roster.

    Attributes:
      senders: indices of the members that are said to have sealed them.
    """

    def __init__(self, senders: Sequence[int]):
        of_whom = ", ".join(map(str, senders))
        super().__init__(f"encrypted shares were changed on their way, or are of another roster: of members {of_whom}")
        self.senders = senders


def commitment(roster: bytes, index: int, own_mask: bytes) -> bytes:
    """Hash the secret of a member's own mask, so that what is computed from shares can be checked."""
    return digest("own-mask", roster, index, own_mask)


class Member:
    """One client in one attempt. Nothing of it is written down: a client that starts again has other keys, and has
    dropped out if the server has made the roster already."""

    def __init__(
        self,
        name: AttemptName,
        identity: Identity,
        floors: Floors,
        authorities: Sequence[x509.Certificate],
        *,
        plan: bytes = b"",
        random: Callable[[int], bytes] = secrets.token_bytes,
    ):
        """Draw the keys of the attempt.

        Args:
          name: which attempt; the model's digest is that of what this client has trained from.
          identity: with which the keys are signed.
          floors: what the client asks for.
          authorities: who signs certificates of members.
          plan: digest of the manifest of the plan that this client has trained by; empty for none.
          random: draws as many bytes as it is told; other than the system's in tests alone.
        """
        self._name, self._identity, self._floors, self._authorities = name, identity, floors, authorities
        self._sealing, self._masking, self._own_mask = (
            X25519PrivateKey.from_private_bytes(random(32)),
            X25519PrivateKey.from_private_bytes(random(32)),
            random(32),
        )
        self._advertisement = identity.advertise(name, public_of(self._sealing), public_of(self._masking), plan)
        self._answers: dict[str, tuple[object, object]] = {}
        self._ended = False
        self._roster: Roster | None = None
        self._index = -1
        self._dealt = frozenset[int]()
        self._survivors, self._story = frozenset[int](), b""
        self._shares: dict[int, bytes] = {}

    def advertise(self) -> Advertisement:
        """Give the public keys, signed."""
        return self._advertisement

    def deal(self, roster: Roster) -> Dealing:
        """Check a roster, and deal shares of both secrets to the neighbours that follow from it.

        Raises:
          UnsafeSumError: it, or anything else that this client was sent in this attempt, is refused.
        """
        return self._once("deal", roster, lambda: self._deal(roster))  # type: ignore[return-value]

    def mask(self, dealt: Dealt, integers: NDArray[np.integer]) -> bytes:
        """Mask a vector of signed integers, of the roster's length, modulo 2^b.

        The integers of the first call count: a second one with other integers gets the first one's bytes.

        Raises:
          UnsafeSumError: see `deal`.
          ValueError: the vector has another length or type, or an integer that is larger than was agreed.
        """
        return self._once("mask", dealt, lambda: self._mask(dealt, integers))  # type: ignore[return-value]

    def agree(self, survivors: frozenset[int]) -> bytes:
        """Sign who has dealt and who survives, as this member was told; see `deal` for its errors."""
        return self._once("agree", survivors, lambda: self._agree(survivors))  # type: ignore[return-value]

    def reveal(self, signatures: Mapping[int, bytes]) -> Revealed:
        """Give the shares by which the masks of the sum of the survivors are removed; see `deal` for its errors.

        Args:
          signatures: by the index of the member that gave them in `agree`. As many neighbours as the threshold must
            have signed what this member has, and more of all members than two stories can have. Else those who are told
            different stories would show what no single story does.
        """
        return self._once("reveal", dict(signatures), lambda: self._reveal(signatures))  # type: ignore[return-value]

    @property
    def roster(self) -> Roster:
        """What this member has dealt for; raises `UnsafeSumError` where there is none."""
        return self._frozen_roster("go on")

    @property
    def rules(self) -> Parameters:
        """The rules of the roster."""
        return self.roster.parameters

    def _once(self, question: str, asked: object, answer: Callable[[], object]) -> object:
        if self._ended:
            raise UnsafeSumError("this client has ended its part in this attempt")
        if question in self._answers:
            before, given = self._answers[question]
            if before != asked:
                self._ended = True
                raise UnsafeSumError(f"this client was asked to {question} before, with something else")
            return given
        try:
            given = answer()
        except UnsafeSumError:
            self._ended = True
            raise
        self._answers[question] = asked, given
        return given

    def _deal(self, roster: Roster) -> Dealing:
        if roster.name != self._name:
            raise UnsafeSumError("the roster is of another run, round, attempt or model")
        if roster.members.count(self._advertisement) != 1:
            raise UnsafeSumError("the roster does not have this client's own keys once")
        if not roster.parameters.noise and {one.plan for one in roster.members} != {self._advertisement.plan}:
            raise UnsafeSumError("an exact sum of members that train by other plans, which tells these apart")
        self._floors.check(roster, self._authorities, datetime.datetime.now(datetime.UTC))
        self._roster, self._index = roster, roster.members.index(self._advertisement)
        threshold, neighbours = roster.parameters.threshold, roster.neighbours(self._index)
        places = {one: one + 1 for one in neighbours}
        masks = shamir.split(self._own_mask, threshold, places.values())
        keys = shamir.split(self._masking.private_bytes_raw(), threshold, places.values())
        shares = {one: self._seal(one, masks[place] + keys[place]) for one, place in places.items()}
        return Dealing(shares, commitment(roster.digest, self._index, self._own_mask))

    def _seal(self, receiver: int, content: bytes) -> bytes:
        roster = self._frozen_roster("deal")
        info = sealing_info(roster.digest, self._index, receiver)
        return sealed(shared_key(self._sealing, roster.members[receiver].sealing_key, info), content, info)

    def _open(self, sender: int, content: bytes) -> bytes:
        roster = self._frozen_roster("open shares")
        info = sealing_info(roster.digest, sender, self._index)
        shares = opened(shared_key(self._sealing, roster.members[sender].sealing_key, info), content, info)
        if len(shares) != 2 * shamir.SHARE_BYTES:
            raise UnsafeSumError(f"member {sender} has sent {len(shares)} bytes of shares")
        return shares

    def _opened(self, sealed: Mapping[int, bytes]) -> dict[int, bytes]:
        found, spoiled = {}, list[int]()
        for one, content in sealed.items():
            try:
                found[one] = self._open(one, content)
            except UnsafeSumError:
                spoiled.append(one)
        if spoiled:
            raise SpoiledSharesError(spoiled)
        return found

    def _mask(self, dealt: Dealt, integers: NDArray[np.integer]) -> bytes:
        roster = self._frozen_roster("mask")
        rules, near = roster.parameters, roster.neighbours(self._index) & dealt.members
        everybody = range(len(roster.members))
        if self._index not in dealt.members or not dealt.members <= set(everybody) or near != dealt.sealed.keys():
            raise UnsafeSumError("the server says of members who have dealt what cannot be")
        self._check_enough(dealt.members, near)
        vector = _residues(integers, rules)
        self._shares = self._opened(dealt.sealed)
        self._dealt = dealt.members
        add_mask(vector, self._own_mask, 1)
        for one in near:
            key = mask_key(self._masking, roster.members[one].masking_key, roster.digest, (self._index, one))
            add_mask(vector, key, 1 if one > self._index else -1)
        return packed(vector, rules.bits)

    def _agree(self, survivors: frozenset[int]) -> bytes:
        roster = self._frozen_roster("agree")
        if "mask" not in self._answers:
            raise UnsafeSumError("the server names survivors before it has this client's vector")
        if self._index not in survivors:
            raise UnsafeSumError("the server has not counted this client, but asks it for shares")
        if not survivors <= self._dealt:
            raise UnsafeSumError("the server counts members that have dealt no shares")
        self._check_enough(survivors, self._shares.keys() & survivors)
        self._floors.check_survivors(roster, survivors)
        self._survivors, self._story = survivors, story_of(roster.digest, self._dealt, survivors)
        return self._identity.sign_story(self._story)

    def _reveal(self, signatures: Mapping[int, bytes]) -> Revealed:
        roster, survivors, story = self._frozen_roster("reveal"), self._survivors, self._story
        if "agree" not in self._answers:
            raise UnsafeSumError("the server asks for shares before it has named survivors")
        signers = {self._index} | {
            one for one in survivors & signatures.keys() if has_signed(roster.members[one], story, signatures[one])
        }
        agreeing = len(signers & self._shares.keys())
        if agreeing < roster.parameters.threshold:
            raise UnsafeSumError(
                f"{agreeing} neighbours were told of the same members, but {roster.parameters.threshold} must be"
            )
        self._floors.check_signers(roster, len(signers))
        size = shamir.SHARE_BYTES
        return Revealed(
            {one: shares[:size] for one, shares in self._shares.items() if one in survivors},
            {one: shares[size:] for one, shares in self._shares.items() if one not in survivors},
        )

    def _check_enough(self, members: frozenset[int], neighbours: "frozenset[int] | set[int]") -> None:
        rules = self.rules
        if len(members) < rules.least_cohort:
            raise UnsafeSumError(f"{len(members)} members are left, but {rules.least_cohort} must be")
        if len(neighbours) < rules.threshold:
            raise UnsafeSumError(f"{len(neighbours)} neighbours are left, but {rules.threshold} must be")

    def _frozen_roster(self, question: str) -> Roster:
        if self._roster is None:
            raise UnsafeSumError(f"the server asks this client to {question} before it has shown a roster")
        return self._roster


def _residues(integers: NDArray[np.integer], rules: Parameters) -> NDArray:
    if integers.shape != (rules.length,) or not np.issubdtype(integers.dtype, np.integer):
        raise ValueError(
            f"a vector of type {integers.dtype} and shape {integers.shape}, but integers of shape ({rules.length},) "
            "are agreed"
        )
    if rules.largest and rules.length:
        least, most = int(integers.min()), int(integers.max())
        if max(-least, most) > rules.largest:
            raise ValueError(f"integers from {least} to {most}, but sizes up to {rules.largest} are agreed")
    return integers.astype(word(rules.bits))
