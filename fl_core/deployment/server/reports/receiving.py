"""Takes a report in: the header is checked before a byte of the upload is read, the upload before it is computed with.

Whatever a client sends, the answer is a status and a reason; a report counts exactly once.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fl_core.deployment.event_log import warn
from fedlm.fl_core.deployment.protocol.errors import BrokenUploadError
from fedlm.fl_core.deployment.protocol.interface import Upload
from fedlm.fl_core.deployment.server.reports.attempt import Attempt, Participant, RoundCollection
from fedlm.fl_core.deployment.server.reports.streaming_sum import Report, StreamingSum
from fedlm.fl_core.deployment.server.reports.transfer_turns import Transfer, Turns
from fedlm.fl_core.deployment.server.reports.upload_buffers import UploadBuffer, UploadBuffers
from fedlm.fl_core.rounds.local_sgd import LocalTraining, TrainingSums
from fedlm.fl_core.updates.update_bytes import DamagedError, WireError

_HEADER_SECONDS = 10.0
_UPLOADS_AT_ONCE = 2
_MOST_EXAMPLES = 10_000_000
_LONGEST_ID = 64
_MOST_LOSS = 1e4
_LARGEST_GRADIENT = 1e12
_REMEMBERED_ATTEMPTS = 4
_Reply = messages.UploadReply
_Result = TypeVar("_Result")


class _Sent(NamedTuple):
    """What a client of an attempt sends."""

    collection: RoundCollection
    client: int
    header: messages.UploadHeader

    @property
    def attempt(self) -> Attempt:
        return self.collection.attempt

    @property
    def participant(self) -> Participant:
        return self.attempt.participants[self.client]

    def answer(self, reply: messages.UploadReply) -> messages.UploadReply:
        """Note that an answer is final."""
        participant = self.participant
        participant.receipt, participant.upload_id = reply, self.header.upload_id
        self.collection.answered(self.client, reply)
        return reply

    def refuse_for_good(self, reason: str) -> messages.UploadReply:
        self.attempt.refused += 1
        return self.answer(refusal(_Reply.INVALID, reason))


class Receiver:
    """Receives the reports of a run.

    Attributes:
      past: who took part in the latest attempts that are closed, by token.
    """

    def __init__(self, training: LocalTraining, length: int, buffers: UploadBuffers):
        """Prepare for clients' training on sequences of so many tokens."""
        self._training, self._length = training, length
        self._buffers, self._adding = buffers, ThreadPoolExecutor(1, "reports")
        self._turns = Turns(_UPLOADS_AT_ONCE)
        self.past: OrderedDict[bytes, dict[int, Participant]] = OrderedDict()

    async def receive(
        self, collection: RoundCollection, number: int, header: messages.UploadHeader, upload: Upload
    ) -> messages.UploadReply:
        """Receive a report whose header was read, of a client that takes part, unless it was received before; or say
        how much of it is there."""
        participant = collection.attempt.participants[number]
        if reply := await self._answered(participant, header):
            return reply
        if header.asks:
            there = _there(participant, header)
            return _Reply(status=_Reply.DAMAGED, reason="the upload broke off", received=there.written if there else 0)
        task = asyncio.create_task(self._receive(_Sent(collection, number, header), upload))
        participant.receiving = task
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            if participant.receiving is task:
                participant.receiving = None
        if not task.cancelled():
            return task.result()
        if participant.receipt is not None and participant.upload_id == header.upload_id:
            return participant.receipt
        if collection.attempt.closed:
            return refusal(_Reply.LATE, "the round ended before the upload did")
        return refusal(_Reply.DAMAGED, "another upload of this client took the place of this one")

    async def _answered(self, participant: Participant, header: messages.UploadHeader) -> messages.UploadReply | None:
        """End what an earlier call of a client does, and give the answer that it has had, if any."""
        if participant.adding is not None:
            await asyncio.wait({participant.adding})
        while participant.receipt is None and (task := participant.receiving) is not None:
            task.cancel()
            await asyncio.wait({task})
            if participant.receiving is task:
                participant.receiving = None
        if participant.receipt is None or participant.upload_id == header.upload_id:
            return participant.receipt
        return refusal(_Reply.INVALID, "this client has answered in this round already")

    async def close(self, attempt: Attempt) -> None:
        """Take no more reports; what is being added now belongs to the sum, what waits for its turn finds it closed."""
        attempt.closed = True
        self.past[attempt.token] = attempt.participants
        while len(self.past) > _REMEMBERED_ATTEMPTS:
            self.past.popitem(last=False)
        for participant in attempt.participants.values():
            if participant.receiving is not None:
                participant.receiving.cancel()
            _forget(participant)
        await self.in_adding_thread(lambda: None)
        self._buffers.forget()

    def answer_of_the_past(self, number: int, header: messages.UploadHeader) -> messages.UploadReply:
        """Answer a report of an attempt that is not running: as before, where it was answered."""
        participants = self.past.get(header.attempt)
        if participants is None:
            return refusal(_Reply.STALE, "this round, or this attempt at it, is not running")
        participant = participants.get(number)
        if participant is not None and participant.receipt is not None and participant.upload_id == header.upload_id:
            return participant.receipt
        return refusal(_Reply.LATE, "the round is over")

    async def _receive(self, sent: _Sent, upload: Upload) -> messages.UploadReply:
        if reason := self._contradiction(sent.header, sent.attempt.sum):
            return sent.refuse_for_good(reason)
        if sent.header.outcome != messages.UploadHeader.TRAINED:
            return await self._decline(sent)
        with self._turns.transfer() as transfer:
            await transfer.turn()
            try:
                buffer = self._goes_on(sent) or self._buffers.open(sent.attempt.sum.upload_bytes)
            except OSError as error:
                return _no_room(error)
            try:
                if buffer.written != sent.header.offset:
                    return refusal(_Reply.DAMAGED, f"what came before byte {sent.header.offset} is not there")
                if reply := await self._fill(buffer, upload, transfer):
                    return reply
                sent.attempt.bytes_up += buffer.written
                # The next one would find no memory while this one is there.
                transfer.keep()
                return await self._add_whole(sent, buffer)
            finally:
                if buffer.complete or not buffer.written or buffer.gave_way or sent.attempt.closed:
                    buffer.close()
                else:
                    sent.participant.begun = sent.header.upload_id, buffer

    def _goes_on(self, sent: _Sent) -> UploadBuffer | None:
        """Take what is there of an upload that goes on behind it; forget it where another begins."""
        buffer = _there(sent.participant, sent.header)
        if buffer is not None and buffer.written == sent.header.offset:
            sent.participant.begun = None
            return buffer
        _forget(sent.participant)
        return None

    def _contradiction(self, header: messages.UploadHeader, total: StreamingSum) -> str:
        """Say what is wrong with a header; empty where nothing is."""
        if not 1 <= len(header.upload_id) <= _LONGEST_ID:
            return f"upload_id has {len(header.upload_id)} bytes, expected 1 to {_LONGEST_ID}"
        if header.outcome != messages.UploadHeader.TRAINED:
            known = header.outcome in messages.UploadHeader.Outcome.values() and header.outcome
            return "" if known else f"outcome {header.outcome} is not known"
        if header.size != (size := total.upload_bytes):
            return f"the upload is declared to have {header.size} bytes, but an update of this model has {size}"
        if total.told is not None:
            told = (header.num_examples, header.loss, header.tokens, header.gradient_norm)
            return "a report of a secure sum says nothing beside its vector" if any(told) else ""
        most = _MOST_EXAMPLES if self._training.max_examples is None else self._training.max_examples
        if not 1 <= header.num_examples <= most:
            return f"num_examples is {header.num_examples}, expected 1 to {most}"
        steps = int(self._training.count_steps(header.num_examples))
        tokens = steps * self._training.batch_size * self._length
        # Bounds that no client reaches whose numbers mean anything; sums of what is below them stay finite in float32.
        bounds = {"tokens": tokens, "loss": tokens * _MOST_LOSS, "gradient_norm": steps * _LARGEST_GRADIENT}
        for name, bound in bounds.items():
            value = getattr(header, name)
            if not (math.isfinite(value) and 0 <= value <= bound):
                return f"{name} is {value:g}, expected a number from 0 to {bound:g}"
        return ""

    async def _decline(self, sent: _Sent) -> messages.UploadReply:
        if sent.header.outcome == messages.UploadHeader.NOT_FINITE:
            await self.in_adding_thread(sent.attempt.sum.add_unusable)
        sent.attempt.declined += 1
        return sent.answer(_Reply(status=_Reply.ACCEPTED))

    async def _fill(self, buffer: UploadBuffer, upload: Upload, transfer: Transfer) -> messages.UploadReply | None:
        while True:
            try:
                if not (count := await upload.read_into(buffer.space())):
                    break
                transfer.moved(count)
                if not await buffer.take(count):
                    return refusal(_Reply.DAMAGED, f"more than the {buffer.size} bytes that were declared")
            except BrokenUploadError as error:
                return refusal(_Reply.DAMAGED, str(error))
            except OSError as error:
                return _no_room(error)
            await transfer.turn()
        if not buffer.complete:
            return refusal(_Reply.DAMAGED, f"{buffer.written} bytes arrived of the {buffer.size} that were declared")
        return None

    async def _add_whole(self, sent: _Sent, buffer: UploadBuffer) -> messages.UploadReply:
        adding = asyncio.create_task(self._add(sent, buffer))
        sent.attempt.participants[sent.client].adding = adding
        try:
            return await asyncio.shield(adding)
        except asyncio.CancelledError:
            # The client has gone, or the round is over; what is being added needs its bytes until it is.
            await asyncio.wait({adding})
            raise

    async def _add(self, sent: _Sent, buffer: UploadBuffer) -> messages.UploadReply:
        header, attempt = sent.header, sent.attempt
        training = TrainingSums(header.loss, header.tokens, header.gradient_norm)  # type: ignore[arg-type]

        def work() -> messages.UploadReply:
            if reply := sent.collection.claim(sent.client, header.upload_id):
                return reply
            try:
                attempt.sum.add(Report(sent.client, buffer.content(), header.num_examples, training))
            except WireError as error:
                sent.collection.give_back(sent.client)
                return refusal(_Reply.DAMAGED if isinstance(error, DamagedError) else _Reply.INVALID, str(error))
            added.append(sent.client)
            return _Reply(status=_Reply.ACCEPTED)

        added: list[int] = []
        try:
            reply = await self.in_adding_thread(work)
        finally:
            attempt.participants[sent.client].adding = None
        if reply.status == _Reply.INVALID:
            return sent.refuse_for_good(reply.reason)
        if added:
            attempt.accepted += added
            if attempt.sum.told is None:
                attempt.steps += int(self._training.count_steps(header.num_examples))
            return sent.answer(reply)
        return reply

    async def in_adding_thread(self, work: Callable[[], _Result]) -> _Result:
        """Work in the one thread that adds reports."""
        return await asyncio.get_running_loop().run_in_executor(self._adding, work)


async def read_header(upload: Upload) -> messages.UploadHeader | None:
    """Read the header of an upload; None where something else came, or nothing for a while."""
    try:
        async with asyncio.timeout(_HEADER_SECONDS):
            return await upload.header()
    except TimeoutError:
        return None


def refusal(status: "messages.UploadReply.Status", reason: str) -> messages.UploadReply:
    """Make the answer to a report that does not count."""
    return _Reply(status=status, reason=reason)


def _there(participant: Participant, header: messages.UploadHeader) -> UploadBuffer | None:
    """Find what came of an upload before its connection broke."""
    upload_id, buffer = participant.begun or (b"", None)
    return buffer if buffer is not None and upload_id == header.upload_id and not buffer.gave_way else None


def _forget(participant: Participant) -> None:
    if participant.begun is not None:
        participant.begun[1].close()
        participant.begun = None


def _no_room(error: OSError) -> messages.UploadReply:
    warn("no_room_for_upload", why=str(error))
    return refusal(_Reply.DAMAGED, "the server has no room for the upload now; send it again later")
