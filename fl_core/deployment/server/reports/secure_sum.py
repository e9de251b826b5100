"""The sum of a round's reports where the server sees no single one: masked vectors, added modulo 2^b."""

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
from cryptography import x509

from fedlm.fedlm_client.secure_aggregation.keys import AttemptName
from fedlm.fedlm_client.secure_aggregation.masks import Words, packed_size
from fedlm.fedlm_client.secure_aggregation.roster import Parameters
from fedlm.fedlm_client.secure_aggregation.taking_part import Reply, Step
from fedlm.fl_core.deployment.secure_aggregation.attempt import SecureAttempt, lost_sum
from fedlm.fl_core.deployment.secure_aggregation.errors import AbandonedError
from fedlm.fl_core.deployment.secure_aggregation.parameter_rule import Strangers, choose_graph
from fedlm.fl_core.deployment.secure_aggregation.secure_round import SecureRound
from fedlm.fl_core.deployment.server.reports.streaming_sum import Report, StreamingSum
from fedlm.fl_core.deployment.server.reports.summed_integers import SummedIntegers
from fedlm.fl_core.deployment.state.state import AttemptRecord
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.rounds.aggregation import CohortAggregate
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.fl_core.updates.update_bytes import WireError


@dataclass(frozen=True)
class SecureSettings:
    """How a run's sums are secure.

    Attributes:
      integers: what they are of.
      least_cohort: members of which a sum must be.
      authorities: who signs certificates of clients.
      save: writes an attempt where it survives a crash.
    """

    integers: SummedIntegers
    least_cohort: int
    authorities: tuple[x509.Certificate, ...]
    save: Callable[[SecureAttempt], None]

    @property
    def upload_bytes(self) -> int:
        """Bytes of a masked vector."""
        return packed_size(self.integers.length, self.integers.bits)

    def rules(self, plan: RoundPlan, members: int) -> Parameters:
        """Make the rules of a round for so many members; raises `AbandonedError` where there are none."""
        try:
            graph = choose_graph(members, Strangers())
        except (ConfigurationError, ValueError) as error:
            raise AbandonedError(f"no secure sum of {members} members") from error
        return Parameters(
            *graph,
            least_cohort=self.least_cohort,
            bits=self.integers.bits,
            length=self.integers.length,
            **self.integers.rules(plan),
        )

    def keep(self, attempt: SecureAttempt) -> None:
        """Write an attempt and, if members are to send their vectors, what this spends."""
        self.save(attempt)
        if attempt.phase == "masking":
            self.integers.charge(attempt.name.round_number)


class SecureSum(StreamingSum):
    """A `StreamingSum` of masked vectors. Used in the thread that adds reports, but for `begin`."""

    def __init__(self, settings: SecureSettings, plan: RoundPlan):
        """Begin with nothing."""
        self._settings, self._plan, self._owners = settings, plan, dict[int, str]()
        self.upload_bytes, self.told = settings.upload_bytes, settings.integers.told(plan)
        self._unusable = 0
        self.round: SecureRound | None = None

    def begin(self, name: AttemptName) -> SecureRound:
        """Open the attempt whose sum this is."""
        settings = self._settings
        rules = functools.partial(settings.rules, self._plan)
        self.round = SecureRound(name, rules, settings.authorities, settings.keep)
        return self.round

    @property
    def senders(self) -> list[int]:
        """Numbers of the clients that may have sent a vector, where the attempt is charged."""
        assert self.round is not None
        dealers = self.round.attempt.dealers
        return [client for client, owner in self._owners.items() if owner in dealers]

    @property
    def awaited(self) -> list[int]:
        """Numbers of the members that have to deal shares while these are taken, and to send a vector after that.
        Who has said that it goes on no more is none of them."""
        assert self.round is not None
        attempt = self.round.attempt
        dealing, owners = attempt.phase == "dealing", enumerate(attempt.advertisements)
        there = {owner for one, owner in owners if (one in attempt.dealings) != dealing and one not in attempt.gone}
        return [client for client, owner in self._owners.items() if owner in there]

    def leave(self, client: int) -> None:
        """Note that a client has answered and sends nothing more."""
        assert self.round is not None
        self.round.attempt.leave(self._owners.get(client, ""))

    def has_keys(self, client: int) -> bool:
        """Say whether a client has sent keys."""
        assert self.round is not None
        return self._owners.get(client) in self.round.attempt.advertisements

    def forget_keys(self, others: Collection[int]) -> None:
        """Let clients with keys but these into no roster: the others have answered that they send no vector."""
        assert self.round is not None
        for client, owner in self._owners.items():
            if client not in others:
                self.round.attempt.withdraw(owner)

    def ending(self, record: AttemptRecord, reported: list[int]) -> tuple[AttemptRecord, list[int]]:
        """Say how the attempt ended, and for which clients its round counts, of whom some have reported."""
        assert self.round is not None
        attempt = self.round.attempt
        if attempt.phase == "finished":
            return record, reported
        if attempt.charged:
            # Of a sum that is lost nobody knows whose vectors were to be in it.
            lost = record._replace(outcome="finished", reason=lost_sum(attempt.reason), reported=len(self.senders))
            return lost, self.senders
        return record._replace(outcome="abandoned", reason=attempt.reason[:256]), []

    def compile(self) -> None:
        pass

    def answer(self, client: int, owner: str, step: Step, content: bytes) -> Reply:
        """Answer a call of a client, by its number and the name in its certificate."""
        assert self.round is not None
        self._owners[client] = owner
        return self.round.answer(owner, step, content)

    def add(self, report: Report) -> None:
        assert self.round is not None
        owner = self._owners.get(report.client, "")
        reply = self.round.answer(owner, "vector", bytes(report.content))
        if reply.state == "over":
            raise WireError(reply.reason)

    def merge(self, clients: Sequence[int], partial: Words, unusable: int) -> None:
        """Add what another process has added up.

        Args:
          clients: whose vectors these are.
          partial: their sum.
          unusable: other clients, whose training gave no finite update.

        Raises:
          RefusedAnswerError: they may not be in the sum, or are there already; nothing was added.
        """
        assert self.round is not None
        self.round.merge([self._owners.get(client, "") for client in clients], partial)
        self._unusable += unusable

    def add_unusable(self) -> None:
        self._unusable += 1

    def finish(self) -> CohortAggregate:
        assert self.round is not None
        attempt, total = self.round.attempt, self.round.total
        assert total is not None
        # The sum of an attempt that was lost is nobody's.
        count = len(attempt.survivors) if attempt.phase == "finished" else 0
        found = self._settings.integers.aggregate(total, count, self._plan)
        unusable = jnp.float32(self._unusable)
        return found._replace(clients=found.clients + unusable, dropped=unusable)
