"""An attempt at a secure sum as a process runs it: answers to clients' calls, and steps that end when they are told to.

What a step came to is in the database before any client is told of it.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from typing import TypeVar

from cryptography import x509

from fedlm.fedlm_client.errors import UnsafeSumError
from fedlm.fedlm_client.secure_aggregation import masks, wire
from fedlm.fedlm_client.secure_aggregation.keys import AttemptName
from fedlm.fedlm_client.secure_aggregation.masks import Words
from fedlm.fedlm_client.secure_aggregation.roster import Parameters
from fedlm.fedlm_client.secure_aggregation.taking_part import Reply, Step
from fedlm.fl_core.deployment.event_log import warn
from fedlm.fl_core.deployment.secure_aggregation.attempt import SecureAttempt
from fedlm.fl_core.deployment.secure_aggregation.errors import AbandonedError, RefusedAnswerError

_WAIT = Reply("wait")
_Told = TypeVar("_Told")


class SecureRound:
    """One attempt of one process. Not thread-safe.

    Attributes:
      attempt: how it stands.
      total: the sum so far; without masks once the attempt is finished.
    """

    def __init__(
        self,
        name: AttemptName,
        rules: Callable[[int], Parameters],
        authorities: Sequence[x509.Certificate],
        save: Callable[[SecureAttempt], None],
    ):
        """Begin with nobody.

        Args:
          name: of the attempt, which no other has.
          rules: for a number of members.
          authorities: who signs certificates of clients.
          save: writes the attempt where it survives a crash.
        """
        self.attempt = SecureAttempt(name)
        self._rules, self._authorities, self._save = rules, authorities, save
        self.total: Words | None = None
        self._said: dict[Step, Reply] = {}

    def answer(self, owner: str, step: Step, content: bytes) -> Reply:
        """Answer a call of the client with that name in its certificate."""
        if self.attempt.phase == "abandoned":
            return Reply("over", reason=self.attempt.reason)
        try:
            return self._answer(owner, step, content)
        except (RefusedAnswerError, UnsafeSumError, ValueError) as error:
            return Reply("over", reason=str(error))

    def _answer(self, owner: str, step: Step, content: bytes) -> Reply:
        attempt = self.attempt
        if step == "keys":
            attempt.advertise(owner, wire.read_advertisement(content), self._authorities)
            return _WAIT if attempt.roster is None else self._alike(step, attempt.roster, wire.write_roster)
        if step == "refuse":
            self._note_refusal(owner, wire.read_members(content))
            return Reply("over", reason="it has refused")
        index = attempt.index(owner)
        if step == "shares":
            attempt.deal(index, wire.read_dealing(content))
            return _WAIT if attempt.phase == "dealing" else Reply("ready", wire.write_dealt(attempt.dealt_for(index)))
        if step == "vector":
            self._add(index, content)
            return Reply("ready")
        if step == "survivors":
            early = attempt.phase in ("dealing", "masking")
            return _WAIT if early else self._alike(step, attempt.survivors, wire.write_members)
        if step == "agree":
            attempt.agree(index, content)
            if attempt.phase == "agreeing":
                return _WAIT
            return self._alike(step, attempt.signatures_for(index), wire.write_signatures)
        attempt.reveal(index, wire.read_revealed(content))
        return Reply("ready")

    def _note_refusal(self, owner: str, senders: frozenset[int]) -> None:
        self.attempt.refuse(self.attempt.index(owner), senders)
        self._name("shares_not_opened", senders, by=owner)

    def _alike(self, step: Step, told: _Told, write: Callable[[_Told], bytes]) -> Reply:
        """Tell a member what all are told alike once a step is over, written once."""
        if step not in self._said:
            self._said[step] = Reply("ready", write(told))
        return self._said[step]

    def _add(self, index: int, content: bytes) -> None:
        if index in self.attempt.survivors:
            return
        if self.attempt.roster is None or self.total is None:
            raise RefusedAnswerError("vectors are not taken yet")
        rules = self.attempt.roster.parameters
        self.attempt.merge(self.total, frozenset([index]), masks.unpacked(content, rules.length, rules.bits))

    def merge(self, owners: Sequence[str], partial: Words) -> None:
        """Add a partial sum of masked vectors of clients, by the names in their certificates.

        Raises:
          RefusedAnswerError: they may not be in the sum, or are there already; nothing was added.
        """
        if self.total is None:
            raise RefusedAnswerError("vectors are not taken yet")
        self.attempt.merge(self.total, frozenset(map(self.attempt.index, owners)), partial)

    @property
    def answered(self) -> bool:
        """Whether all members that can have answered the step that runs; who advertises is not known."""
        attempt = self.attempt
        found: Container[int]
        wanted: Iterable[int]
        found, wanted = {
            "dealing": (attempt.dealings, range(len(attempt.roster.members) if attempt.roster else 0)),
            "masking": (attempt.survivors, attempt.dealings),
            "agreeing": (attempt.signatures, attempt.survivors),
            "revealing": (attempt.revealed, attempt.signatures),
        }.get(attempt.phase, ((), (-1,)))
        return all(one in found or one in attempt.gone for one in wanted)

    def end_step(self) -> None:
        """End the step that runs, with those that have answered, and begin the next; the last one gives the sum.

        Raises:
          AbandonedError: too few are left. The attempt is over, and written so.
          StateError: it cannot be written; nobody was told anything, and nobody will be.
        """
        try:
            self._end_step()
        except AbandonedError:
            self._save(self.attempt)
            raise
        try:
            self._save(self.attempt)
        except BaseException:
            self.attempt.abandon("its state could not be written")
            raise

    def _end_step(self) -> None:
        phase = self.attempt.phase
        if phase == "advertising":
            self.attempt.freeze(self._rules)
        elif phase == "dealing":
            self.attempt.close_dealing()
            self.total = self.attempt.empty_sum()
        elif phase == "masking":
            self.attempt.announce()
        elif phase == "agreeing":
            self.attempt.close_agreeing()
        elif phase == "revealing":
            assert self.total is not None
            try:
                self.attempt.finish(self.total)
            finally:
                self._name("wrong_shares", self.attempt.culprits)
                self._name("shares_not_of_announced", self.attempt.dealers_in_doubt)

    def _name(self, event: str, members: frozenset[int], **more: str) -> None:
        """Name members in the log."""
        owners = [*self.attempt.advertisements]
        for index in sorted(members):
            warn(event, client=owners[index], round=self.attempt.name.round_number, **more)
