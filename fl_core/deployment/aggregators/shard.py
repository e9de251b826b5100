"""The part that one aggregator has in an attempt at a round; who may add which report is decided in the database."""

import asyncio
from typing import Literal

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fl_core.deployment.aggregators.partial_sums import pack_sum
from fedlm.fl_core.deployment.aggregators.shared_records import PartialSum
from fedlm.fl_core.deployment.aggregators.shared_rounds import SharedRounds
from fedlm.fl_core.deployment.event_log import warn
from fedlm.fl_core.deployment.server.reports.attempt import Attempt
from fedlm.fl_core.deployment.server.reports.receiving import refusal
from fedlm.fl_core.deployment.state.state import StateError

_Reply = messages.UploadReply
_NOT_CLAIMED = {
    "elsewhere": (_Reply.DAMAGED, "the server does not know yet whether this report counts; send it again later"),
    "answered": (_Reply.INVALID, "this client has answered in this round already"),
    "late": (_Reply.LATE, "the round is over"),
    "early": (_Reply.INVALID, "vectors are taken only of members that have dealt shares"),
}


class Shard:
    """A `RoundCollection` that is shared with other processes.

    Attributes:
      added: clients whose reports are in the sum, or being added.
    """

    def __init__(self, attempt: Attempt, shared: SharedRounds, aggregator: str):
        """Begin to collect into an attempt."""
        self.attempt, self.aggregator, self._shared = attempt, aggregator, shared
        self.selecting = True
        self.added: set[int] = set()
        # What became of other clients, until the database knows.
        self._settled: dict[int, Literal["declined", "refused"]] = {}

    @property
    def token(self) -> str:
        """The attempt's name in hex."""
        return self.attempt.token.hex()

    def wants(self, client: int, now: float) -> bool:
        """Say whether a client might be selected at a moment; the database has the last word."""
        attempt = self.attempt
        if client in attempt.participants:
            return not attempt.closed and attempt.participants[client].receipt is None
        return not attempt.closed and self.selecting and now < attempt.deadline

    def claim(self, client: int, upload_id: bytes) -> messages.UploadReply | None:
        if self.attempt.closed:
            return refusal(_Reply.LATE, "the round is over")
        try:
            claim = self._shared.claim(self.token, client, self.aggregator, upload_id)
        except StateError as error:
            warn("report_not_claimed", why=str(error))
            return refusal(_Reply.DAMAGED, "the server cannot take reports now; send it again later")
        if claim in _NOT_CLAIMED:
            return refusal(*_NOT_CLAIMED[claim])
        if client in self.added:
            return _Reply(status=_Reply.ACCEPTED)
        # An earlier claim of the same upload may have been committed although the connection broke.
        self.added.add(client)
        return None

    def give_back(self, client: int) -> None:
        self.added.discard(client)
        try:
            self._shared.settle(self.token, {client: "selected"}, self.aggregator)
        except StateError as error:
            # It counts as lost when the sum is handed over.
            warn("report_not_given_back", why=str(error))

    def answered(self, client: int, receipt: messages.UploadReply) -> None:
        if client not in self.added:
            self._settled[client] = "declined" if receipt.status == _Reply.ACCEPTED else "refused"

    async def settle(self) -> None:
        """Let the database know what became of clients whose reports are not in the sum."""
        settled, self._settled = self._settled, {}
        if not settled:
            return
        try:
            await asyncio.to_thread(self._shared.settle, self.token, settled, self.aggregator)
        except StateError:
            self._settled = settled | self._settled
            raise

    def hand_over(self, leaving: bool = False) -> bool:
        """Deliver the sum, once the round is closed, or where this aggregator is leaving it; returns whether it was
        taken."""
        partial = PartialSum(
            token=self.token,
            aggregator=self.aggregator,
            content=self._shared.put(pack_sum(self.attempt.sum)),
            reports=len(self.added),
            steps=self.attempt.steps,
            bytes_down=self.attempt.bytes_down,
            bytes_up=self.attempt.bytes_up,
        )
        return self._shared.deliver(partial, sorted(self.added), leaving)
