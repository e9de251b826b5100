"""What a server computes from members' shares: secrets, checked, and a sum without its masks."""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedlm.fedlm_client.secure_aggregation import shamir
from fedlm.fedlm_client.secure_aggregation.keys import mask_key, public_of
from fedlm.fedlm_client.secure_aggregation.masks import Words
from fedlm.fedlm_client.secure_aggregation.member import commitment
from fedlm.fedlm_client.secure_aggregation.roster import Roster
from fedlm.fl_core.deployment.secure_aggregation.errors import AbandonedError
from fedlm.fl_core.deployment.secure_aggregation.mask_work import Stream, take_off

_TRIES = 200


class Recovered(NamedTuple):
    """A secret, and whose shares were not of it."""

    secret: bytes
    culprits: frozenset[int]  # indices of members


def recover(shares: Mapping[int, bytes], threshold: int, holds: Callable[[bytes], bool]) -> Recovered:
    """Compute a secret, although some shares may be wrong.

    Other choices of shares are tried where the first does not give the secret, at random.

    Args:
      shares: by the index of the member that gave them, those that are tried first before the others.
      threshold: how many give the secret back.
      holds: whether a secret is the right one.

    Raises:
      AbandonedError: there are too few, or so many wrong ones that the secret was not found.
    """
    if len(shares) < threshold:
        raise AbandonedError(f"{len(shares)} shares of a secret, but it needs {threshold}")
    for chosen in itertools.islice(_choices([*shares], threshold), _TRIES):
        placed = {index + 1: shares[index] for index in chosen}
        try:
            secret = shamir.combine(placed)
        except ValueError:
            continue
        if holds(secret):
            others = shares.keys() - set(chosen)
            wrong = (one for one in others if shamir.value_at(placed, one + 1) != int.from_bytes(shares[one], "big"))
            return Recovered(secret, frozenset(wrong))
    raise AbandonedError(f"no {threshold} of {len(shares)} shares that were tried give the secret that was announced")


def _choices(indices: list[int], count: int) -> Iterator[list[int]]:
    yield indices[:count]
    if len(indices) > count:
        drawn = random.Random(0)
        while True:
            yield drawn.sample(indices, count)


class Unmasking(NamedTuple):
    """What removes the masks of a sum."""

    own_masks: dict[int, bytes]  # of each survivor
    masking_keys: dict[int, bytes]  # of each member that has dealt and did not survive
    culprits: frozenset[int]  # members that gave wrong shares


def unmasking(
    roster: Roster,
    commitments: Mapping[int, bytes],
    shares: tuple[Mapping[int, Mapping[int, bytes]], Mapping[int, Mapping[int, bytes]]],
) -> Unmasking:
    """Recover the secrets of all members.

    Args:
      roster: of the sum.
      commitments: of each survivor, to its own mask.
      shares: of own masks, and of masking keys: for each member's index the shares by who gave them.

    Raises:
      AbandonedError: a secret cannot be recovered.
    """
    threshold, culprits = roster.parameters.threshold, set[int]()

    def found(given: Mapping[int, bytes], holds: Callable[[bytes], bool]) -> bytes:
        believed = sorted(given, key=lambda giver: (giver in culprits, giver))
        recovered = recover({giver: given[giver] for giver in believed}, threshold, holds)
        culprits.update(recovered.culprits)
        return recovered.secret

    def is_own_mask(index: int) -> Callable[[bytes], bool]:
        return lambda secret: commitment(roster.digest, index, secret) == commitments[index]

    def is_masking_key(index: int) -> Callable[[bytes], bool]:
        key = roster.members[index].masking_key
        return lambda secret: public_of(X25519PrivateKey.from_private_bytes(secret)) == key

    own = {index: found(given, is_own_mask(index)) for index, given in shares[0].items()}
    keys = {index: found(given, is_masking_key(index)) for index, given in shares[1].items()}
    return Unmasking(own, keys, frozenset(culprits))


def remove_masks(total: Words, roster: Roster, secrets: Unmasking) -> None:
    """Take the masks off a sum of the survivors' vectors, in place, modulo what its words hold."""
    streams = [Stream(key, -1) for key in secrets.own_masks.values()]
    for dropped, private in secrets.masking_keys.items():
        own = X25519PrivateKey.from_private_bytes(private)
        for survivor in roster.neighbours(dropped) & secrets.own_masks.keys():
            key = mask_key(own, roster.members[survivor].masking_key, roster.digest, (survivor, dropped))
            streams.append(Stream(key, -1 if dropped > survivor else 1))
    take_off(total, streams)
