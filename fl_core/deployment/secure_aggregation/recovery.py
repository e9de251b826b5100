"""What a server computes from members' shares: secrets, checked, and a sum without its masks."""

import random
from collections.abc import Callable, Iterator, Mapping, Set
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedlm.fedlm_client.secure_aggregation import shamir
from fedlm.fedlm_client.secure_aggregation.keys import mask_key, public_of
from fedlm.fedlm_client.secure_aggregation.masks import Words
from fedlm.fedlm_client.secure_aggregation.member import commitment
from fedlm.fedlm_client.secure_aggregation.roster import Roster
from fedlm.fl_core.deployment.secure_aggregation.error_correction import fitting
from fedlm.fl_core.deployment.secure_aggregation.errors import AbandonedError, NotRecoveredError
from fedlm.fl_core.deployment.secure_aggregation.mask_work import Stream, take_off

_TRIES = 200


class Recovered(NamedTuple):
    """A secret, and whose shares were not of it."""

    secret: bytes
    culprits: frozenset[int]  # indices of members


def recover(
    shares: Mapping[int, bytes], threshold: int, holds: Callable[[bytes], bool], doubted: Set[int] = frozenset()
) -> Recovered:
    """Compute a secret, although some shares may be wrong.

    Whoever chose the wrong ones, the secret is found where they are at most half of those beyond the threshold, or are
    of doubted members and enough others fit. Of few members it is found wherever enough shares fit.

    Args:
      shares: by the index of the member that gave them.
      threshold: how many give the secret back.
      holds: whether a secret is the right one.
      doubted: members whose shares are tried last.

    Raises:
      AbandonedError: there are too few, or so many wrong ones that the secret was not found.
    """
    if len(shares) < threshold:
        raise AbandonedError(f"{len(shares)} shares of a secret, but it needs {threshold}")
    for chosen in _choices(shares, threshold, doubted):
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


def _choices(shares: Mapping[int, bytes], threshold: int, doubted: Set[int]) -> Iterator[list[int]]:
    values = {index: int.from_bytes(share, "big") for index, share in sorted(shares.items())}
    numbers = {index: value for index, value in values.items() if value < shamir.PRIME}
    trusted = {index: value for index, value in numbers.items() if index not in doubted}
    # A member that dealt some wrong shares has brought honest ones into doubt.
    for pool in (trusted, numbers) if trusted != numbers else (numbers,):
        if len(pool) >= threshold:
            yield [*pool][:threshold]
        if len(pool) <= threshold:
            continue
        fit = fitting({index + 1: value for index, value in pool.items()}, threshold)
        if len(fit) >= threshold:
            yield [place - 1 for place in fit[:threshold]]
        drawn = random.Random(0)
        yield from (drawn.sample([*pool], threshold) for _ in range(_TRIES))


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
      NotRecoveredError: a secret cannot be recovered.
    """

    def is_own_mask(index: int) -> Callable[[bytes], bool]:
        return lambda secret: commitment(roster.digest, index, secret) == commitments[index]

    def is_masking_key(index: int) -> Callable[[bytes], bool]:
        key = roster.members[index].masking_key
        return lambda secret: public_of(X25519PrivateKey.from_private_bytes(secret)) == key

    kinds, culprits = (is_own_mask, is_masking_key), set[int]()
    found: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})
    waiting = [(kind, index) for kind, of_members in enumerate(shares) for index in of_members]
    while waiting:
        before, failed = len(culprits), dict[tuple[int, int], str]()
        for kind, index in waiting:
            given = shares[kind][index]
            try:
                secret, wrong = recover(given, roster.parameters.threshold, kinds[kind](index), culprits)
            except AbandonedError as error:
                failed[kind, index] = str(error)
                continue
            found[kind][index] = secret
            culprits |= wrong
        if failed and len(culprits) == before:
            dealers = {index for kind, index in failed if len(shares[kind][index]) >= roster.parameters.threshold}
            raise NotRecoveredError(next(iter(failed.values())), frozenset(culprits), frozenset(dealers))
        # Who was found to lie since then counts last now.
        waiting = [*failed]
    return Unmasking(*found, frozenset(culprits))


def remove_masks(total: Words, roster: Roster, secrets: Unmasking) -> None:
    """Take the masks off a sum of the survivors' vectors, in place, modulo what its words hold."""
    streams = [Stream(key, -1) for key in secrets.own_masks.values()]
    for dropped, private in secrets.masking_keys.items():
        own = X25519PrivateKey.from_private_bytes(private)
        for survivor in roster.neighbours(dropped) & secrets.own_masks.keys():
            key = mask_key(own, roster.members[survivor].masking_key, roster.digest, (survivor, dropped))
            streams.append(Stream(key, -1 if dropped > survivor else 1))
    take_off(total, streams)
