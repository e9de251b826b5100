"""The protocol of secure sums among the clients of a simulated round, with clients and server in this process.

Keys, shares and masks are made as in a deployment, by the same functions. They cancel: sums are those without masks.
"""

import functools
import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedlm.fedlm_client.distributed_noise.lattice import Lattice
from fedlm.fedlm_client.secure_aggregation import wire
from fedlm.fedlm_client.secure_aggregation.floors import Floors
from fedlm.fedlm_client.secure_aggregation.keys import AttemptName, Identity
from fedlm.fedlm_client.secure_aggregation.member import Member
from fedlm.fedlm_client.secure_aggregation.taking_part import Step
from fedlm.fl_core.deployment.secure_aggregation.secure_round import SecureRound
from fedlm.fl_core.deployment.security.certificates import new_key, sign_authority, sign_client
from fedlm.fl_core.deployment.server.reports.secure_sum import SecureSettings
from fedlm.fl_core.deployment.server.reports.summed_integers import NoisedSums
from fedlm.fl_core.privacy.distributed_rounds import CohortSum, SumInTheClear
from fedlm.fl_core.rounds.round_loop import RoundPlan

_DAYS = 3650


class MaskedCohorts:
    """Begins sums of masked integers; see `fedlm.fl_core.privacy.distributed_rounds.BeginSum`."""

    def __init__(self) -> None:
        """Make an authority, which signs a certificate for each place of a cohort once it is taken."""
        self._key = new_key()
        self._authority = sign_authority(self._key, _DAYS)
        self._identities: list[Identity] = []

    def __call__(self, lattice: Lattice, plan: RoundPlan, least: int) -> CohortSum:
        count = len(plan.clients)
        if count < least:
            # The round is given up, as a deployment abandons it.
            return SumInTheClear(lattice, plan, least)
        for place in range(len(self._identities), count):
            own = new_key()
            certificate = sign_client(self._authority, self._key, own.public_key(), _name(place), days=_DAYS)
            self._identities.append(Identity(certificate, own))
        settings = SecureSettings(NoisedSums(lattice, _nothing), least, (self._authority,), _nothing)
        return _MaskedSum(settings, plan, self._identities[:count])


class _MaskedSum:
    """One attempt, of which no member drops out."""

    def __init__(self, settings: SecureSettings, plan: RoundPlan, identities: Sequence[Identity]):
        """Let all members deal."""
        # Nobody is told another model, so that its digest says nothing.
        name = AttemptName("simulation", plan.round_number, secrets.token_bytes(16), bytes(32))
        self._round = SecureRound(name, functools.partial(settings.rules, plan), settings.authorities, settings.keep)
        floors, self._added = Floors(settings.least_cohort), 0
        self._members = [Member(name, identity, floors, settings.authorities) for identity in identities]
        rosters = self._answers("keys", [wire.write_advertisement(one.advertise()) for one in self._members])
        dealings = [
            wire.write_dealing(one.deal(wire.read_roster(roster)))
            for one, roster in zip(self._members, rosters, strict=True)
        ]
        self._dealt = self._answers("shares", dealings)

    def add(self, integers: NDArray[np.int64]) -> None:
        vector = self._members[self._added].mask(wire.read_dealt(self._dealt[self._added]), integers)
        self._answer(self._added, "vector", vector)
        self._added += 1

    def residues(self) -> NDArray[np.unsignedinteger]:
        self._round.end_step()
        told = [wire.read_members(self._answer(place, "survivors", b"")) for place in range(self._added)]
        signed = [one.agree(survivors) for one, survivors in zip(self._members, told, strict=True)]
        signatures = map(wire.read_signatures, self._answers("agree", signed))
        shares = [one.reveal(signed) for one, signed in zip(self._members, signatures, strict=True)]
        self._answers("reveal", [wire.write_revealed(one) for one in shares])
        assert self._round.total is not None
        return self._round.total

    def _answers(self, step: Step, contents: Sequence[bytes]) -> list[bytes]:
        """Send what all members say in a step, end it, and ask again for what it came to."""
        for place, content in enumerate(contents):
            self._answer(place, step, content)
        self._round.end_step()
        return [self._answer(place, step, content) for place, content in enumerate(contents)]

    def _answer(self, place: int, step: Step, content: bytes) -> bytes:
        reply = self._round.answer(_name(place), step, content)
        assert reply.state != "over", reply.reason
        return reply.content


def _name(place: int) -> str:
    return f"client{place}"


def _nothing(_: object) -> None:
    """Nothing is written down of a simulated attempt, nor charged: the run's ledger has the round."""
