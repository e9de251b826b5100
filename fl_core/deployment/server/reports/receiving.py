"""Takes a report in: the header is checked before a byte of the upload is read, the upload before it is computed with.

Whatever a client sends, the answer is a status and a reason; a report counts exactly once.
"""

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor

from fedlm.fl_core.compression.compressors import Compressor
from fedlm.fl_core.deployment.event_log import warn
from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.interface import BrokenUploadError, Upload
from fedlm.fl_core.deployment.protocol.update_bytes import DamagedError, WireError, upload_bytes
from fedlm.fl_core.deployment.server.reports.streaming_sum import Report
from fedlm.fl_core.deployment.server.reports.transfer_turns import Transfer, Turns
from fedlm.fl_core.deployment.server.reports.upload_buffers import UploadBuffer, UploadBuffers
from fedlm.fl_core.deployment.server.round_attempt import RoundAttempt
from fedlm.fl_core.local_sgd import LocalTraining, TrainingSums
from fedlm.models.base import Params

_HEADER_SECONDS = 10.0
_UPLOADS_AT_ONCE = 2
_MOST_EXAMPLES = 10_000_000
_LONGEST_ID = 64
_MOST_LOSS = 1e4
_LARGEST_GRADIENT = 1e12
_Reply = messages.UploadReply


class Receiver:
    """Receives the reports of a run."""

    def __init__(
        self, like: Params, compressor: Compressor, training: LocalTraining, length: int, buffers: UploadBuffers
    ):
        """Prepare to receive updates of one model.

        Args:
          like: arrays, or shapes, of its structure.
          compressor: how updates travel.
          training: what clients do.
          length: target tokens of a sequence.
          buffers: where uploads wait until they are whole.
        """
        self._size, self._training, self._length = upload_bytes(compressor, like), training, length
        self._buffers, self._adding = buffers, ThreadPoolExecutor(1, "reports")
        self._turns = Turns(_UPLOADS_AT_ONCE)

    async def receive(
        self, attempt: RoundAttempt, number: int, header: messages.UploadHeader, upload: Upload
    ) -> messages.UploadReply:
        """Receive a report, or find out that it was received before.

        Args:
          attempt: that is running.
          number: of the client, which takes part in it.
          header: of the upload.
          upload: whose header was read.

        Returns:
          The answer.
        """
        participant = attempt.participants[number]
        if participant.adding is not None:
            await asyncio.wait({participant.adding})
        if participant.receipt is not None:
            if participant.upload_id == header.upload_id:
                return participant.receipt
            return refusal(_Reply.INVALID, "this client has answered in this round already")
        if participant.receiving is not None:
            participant.receiving.cancel()
        task = asyncio.create_task(self._receive(attempt, number, header, upload))
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
        if attempt.closed:
            return refusal(_Reply.LATE, "the round ended before the upload did")
        return refusal(_Reply.DAMAGED, "another upload of this client took the place of this one")

    async def idle(self) -> None:
        """Wait until no report is being added, and forget those that were."""
        await asyncio.get_running_loop().run_in_executor(self._adding, lambda: None)
        self._buffers.forget()

    async def _receive(
        self, attempt: RoundAttempt, number: int, header: messages.UploadHeader, upload: Upload
    ) -> messages.UploadReply:
        if reason := self._contradiction(header):
            return _finally_refused(attempt, number, header, reason)
        if header.outcome != messages.UploadHeader.TRAINED:
            return await self._decline(attempt, number, header)
        with self._turns.transfer() as transfer:
            await transfer.turn()
            if attempt.taken >= attempt.rules.goal:
                return refusal(_Reply.LATE, "the round has all the reports that it wanted")
            try:
                buffer = self._buffers.open(self._size)
            except OSError as error:
                return _no_room(error)
            with buffer:
                if reply := await self._fill(buffer, upload, transfer):
                    return reply
                attempt.bytes_up += buffer.written
                # The next one would find no memory while this one is there.
                transfer.keep()
                return await self._add_whole(attempt, number, header, buffer)

    def _contradiction(self, header: messages.UploadHeader) -> str:
        """Say what is wrong with a header; empty where nothing is."""
        if not 1 <= len(header.upload_id) <= _LONGEST_ID:
            return f"upload_id has {len(header.upload_id)} bytes, expected 1 to {_LONGEST_ID}"
        if header.outcome != messages.UploadHeader.TRAINED:
            known = header.outcome in messages.UploadHeader.Outcome.values() and header.outcome
            return "" if known else f"outcome {header.outcome} is not known"
        if header.size != self._size:
            return f"the upload is declared to have {header.size} bytes, but an update of this model has {self._size}"
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

    async def _decline(self, attempt: RoundAttempt, number: int, header: messages.UploadHeader) -> messages.UploadReply:
        if header.outcome == messages.UploadHeader.NOT_FINITE:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._adding, attempt.sum.add_unusable)
        attempt.declined += 1
        reply = _Reply(status=_Reply.ACCEPTED)
        attempt.answer(number, header.upload_id, reply)
        return reply

    async def _fill(self, buffer: UploadBuffer, upload: Upload, transfer: Transfer) -> messages.UploadReply | None:
        while True:
            try:
                if not (count := await upload.read_into(buffer.space())):
                    break
                transfer.moved(count)
                if not await buffer.take(count):
                    return refusal(_Reply.DAMAGED, f"more than the {self._size} bytes that were declared")
            except BrokenUploadError as error:
                return refusal(_Reply.DAMAGED, str(error))
            except OSError as error:
                return _no_room(error)
            await transfer.turn()
        if not buffer.complete:
            return refusal(_Reply.DAMAGED, f"{buffer.written} bytes arrived of the {self._size} that were declared")
        return None

    async def _add_whole(
        self, attempt: RoundAttempt, number: int, header: messages.UploadHeader, buffer: UploadBuffer
    ) -> messages.UploadReply:
        adding = asyncio.create_task(self._add(attempt, number, header, buffer))
        attempt.participants[number].adding = adding
        try:
            return await asyncio.shield(adding)
        except asyncio.CancelledError:
            # The client has gone, or the round is over; what is being added needs its bytes until it is.
            await asyncio.wait({adding})
            raise

    async def _add(
        self, attempt: RoundAttempt, number: int, header: messages.UploadHeader, buffer: UploadBuffer
    ) -> messages.UploadReply:
        participant = attempt.participants[number]
        training = TrainingSums(header.loss, header.tokens, header.gradient_norm)  # type: ignore[arg-type]

        def work() -> tuple[messages.UploadReply, bool]:
            if reply := attempt.claim(number, header.upload_id):
                return reply, False
            try:
                attempt.sum.add(Report(number, buffer.content(), header.num_examples, training))
            except WireError as error:
                attempt.give_back(number)
                return refusal(_Reply.DAMAGED if isinstance(error, DamagedError) else _Reply.INVALID, str(error)), False
            return _Reply(status=_Reply.ACCEPTED), True

        try:
            reply, added = await asyncio.get_running_loop().run_in_executor(self._adding, work)
        finally:
            participant.adding = None
        if reply.status == _Reply.INVALID:
            return _finally_refused(attempt, number, header, reply.reason)
        if added:
            attempt.accepted.append(number)
            attempt.steps += int(self._training.count_steps(header.num_examples))
            attempt.answer(number, header.upload_id, reply)
        return reply


async def read_header(upload: Upload) -> messages.UploadHeader | None:
    """Read the header of an upload.

    Args:
      upload: that arrives.

    Returns:
      The header; None where something else came, or nothing for a while.
    """
    try:
        async with asyncio.timeout(_HEADER_SECONDS):
            return await upload.header()
    except TimeoutError:
        return None


def refusal(status: "messages.UploadReply.Status", reason: str) -> messages.UploadReply:
    """Make the answer to a report that does not count.

    Args:
      status: which kind of answer.
      reason: in words.

    Returns:
      The answer.
    """
    return _Reply(status=status, reason=reason)


def _finally_refused(
    attempt: RoundAttempt, number: int, header: messages.UploadHeader, reason: str
) -> messages.UploadReply:
    reply = refusal(_Reply.INVALID, reason)
    attempt.refused += 1
    attempt.answer(number, header.upload_id, reply)
    return reply


def _no_room(error: OSError) -> messages.UploadReply:
    warn("no_room_for_upload", why=str(error))
    return refusal(_Reply.DAMAGED, "the server has no room for the upload now; send it again later")
