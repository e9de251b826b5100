"""A `SharedCohortRunner` whose sums are secure: members' steps go through aggregators, and the coordinator ends each.

Aggregators hand over what they have added up before survivors are named. So one that dies before costs its members
alone, and one that dies later costs nothing.
"""

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedlm.fedlm_client.errors import UnsafeSumError
from fedlm.fedlm_client.secure_aggregation.keys import AttemptName, public_of
from fedlm.fedlm_client.secure_aggregation.taking_part import Reply, Step
from fedlm.fl_core.deployment.aggregators.masked_part import MaskedLayout, read_part
from fedlm.fl_core.deployment.aggregators.member_messages import MemberMessage, MemberMessages, unsealed
from fedlm.fl_core.deployment.aggregators.shared_records import PartialSum, Phase, Tally
from fedlm.fl_core.deployment.aggregators.shared_rounds import SharedRounds
from fedlm.fl_core.deployment.aggregators.shared_runner import ADVANCED_EVERY, POLL_SECONDS, SharedCohortRunner
from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact
from fedlm.fl_core.deployment.secure_aggregation.errors import AbandonedError, RefusedAnswerError
from fedlm.fl_core.deployment.secure_aggregation.secure_round import SecureRound
from fedlm.fl_core.deployment.server.client_handlers import Offer
from fedlm.fl_core.deployment.server.reports.secure_sum import SecureSettings, SecureSum
from fedlm.fl_core.deployment.server.settings import Deployment
from fedlm.fl_core.deployment.state.retrying import with_retries
from fedlm.fl_core.deployment.state.state import AttemptRecord
from fedlm.fl_core.rounds.round_loop import CohortResult, RoundPlan
from fedlm.fl_core.updates.update_bytes import WireError


class SecureCohortRunner(SharedCohortRunner):
    """Runs secure rounds with aggregators; used in one thread."""

    _sum: SecureSum
    _key: X25519PrivateKey

    def __init__(
        self,
        shared: SharedRounds,
        deployment: Deployment,
        agreement: str,
        draining: Callable[[], bool],
        *,
        messages: MemberMessages,
        settings: SecureSettings,
        run: str,
        offer: Offer,
    ):
        """See `SharedCohortRunner`; `settings` say how sums are secure, `run` is the run's name, and `offer` what its
        clients are offered by aggregators."""
        super().__init__(shared, deployment, agreement, draining)
        self._messages, self._settings, self._run, self._offer = messages, settings, run, offer
        self._layout = MaskedLayout(settings.integers.length, settings.integers.bits)
        self._waiting: dict[tuple[int, Step], MemberMessage] = {}

    @property
    def _secure(self) -> SecureRound:
        assert self._sum.round is not None
        return self._sum.round

    def _masks(self, token: str, plan: RoundPlan, content: bytes) -> dict[str, Any]:
        self._sum, self._waiting = SecureSum(self._settings, plan), {}
        model = ServedArtifact([content], self._deployment.download_encoding, self._deployment.chunk_bytes)
        asked = self._offer.request(
            plan, model.description, attempt=bytes.fromhex(token), run=self._run, secure_sum=self._sum.told
        )
        self._sum.begin(AttemptName.of(asked))
        assert self._sum.told is not None
        self._key = X25519PrivateKey.generate()
        masked = {"masked_length": self._layout.length, "masked_bits": self._layout.bits}
        return masked | {"masks": self._sum.told.SerializeToString(), "sealing_key": public_of(self._key)}

    @property
    def _patience_seconds(self) -> float:
        # Who has no keys in the roster cannot be let in.
        return math.inf

    def _look(self, token: str) -> Tally:
        """Take a tally in which members that have sent keys have reported, and answer what clients have said."""
        self._answer(token, with_retries(lambda: self._messages.new(token)))
        tally = super()._look(token)
        if self._secure.attempt.phase != "advertising":
            return tally
        # Who has declined after it sent keys is no more waited for than who has sent none.
        keys, states = sum(map(self._sum.has_keys, with_retries(lambda: self._shared.silent(token)))), tally.states
        waiting = {"selected": states.get("selected", 0) - keys, "claimed": states.get("claimed", 0) + keys}
        return tally._replace(states=states | waiting if keys else states)

    def _answer(self, token: str, said: list[MemberMessage]) -> None:
        answers = [(one, self._reply(one)) for one in said]
        for one, reply in answers:
            self._waiting.pop((one.client, one.step), None)
            if reply.state == "wait":
                self._waiting[one.client, one.step] = one
        if answers:
            with_retries(lambda: self._messages.answer(token, answers))

    def _reply(self, said: MemberMessage) -> Reply:
        try:
            one = unsealed(self._key, said)
        except UnsafeSumError as error:
            return Reply("over", reason=str(error))
        return self._sum.answer(one.client, one.owner, one.step, one.content)

    def _sum_up(self, token: str, like: Any) -> CohortResult:
        moved = CohortResult(None, 0, 0, 0)  # type: ignore[arg-type]
        while (phase := self._secure.attempt.phase) not in ("finished", "abandoned"):
            if phase == "advertising":
                self._sum.forget_keys(with_retries(lambda: self._shared.silent(token)))
            else:
                self._until_answered(token, "reporting" if phase in ("dealing", "masking") else "closed")
            if phase == "masking":
                with_retries(lambda: self._shared.advance(token, "closed", 0.0))
                self._until_delivered(token)
                moved = self._each_part(token, self._add)
            with contextlib.suppress(AbandonedError):
                self._secure.end_step()
            self._answer(token, list(self._waiting.values()))
        return moved if self._secure.total is None else moved._replace(aggregate=self._sum.finish())

    def _until_answered(self, token: str, phase: Phase) -> None:
        """Wait until all members have answered the step that runs, or its time is over."""
        advanced = begun = time.monotonic()
        self._advance(token, phase, self._rules.reporting_seconds, 0.0)
        while True:
            self._look(token)
            now = time.monotonic()
            left = self._time_left(begun + self._rules.reporting_seconds - now, now)
            if left <= 0 or self._has_all_answers(token):
                return
            if now - advanced > ADVANCED_EVERY:
                self._advance(token, phase, left, now - advanced)
                advanced = now
            time.sleep(min(POLL_SECONDS, left))

    def _has_all_answers(self, token: str) -> bool:
        if self._secure.attempt.phase not in ("dealing", "masking"):
            return self._secure.answered
        silent = with_retries(lambda: self._shared.silent(token))
        return not set(silent).intersection(self._sum.awaited)

    def _add(self, partial: PartialSum, content: bytes) -> None:
        clients = with_retries(lambda: self._shared.claimed(partial.token, partial.aggregator))
        total, unusable = read_part(content, self._layout)
        try:
            self._sum.merge(clients, total, unusable)
        except RefusedAnswerError as error:
            raise WireError(str(error)) from error

    def _ending(self, record: AttemptRecord, participants: list[int]) -> tuple[AttemptRecord, list[int]]:
        return self._sum.ending(record, participants)
