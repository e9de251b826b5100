"""What one attempt at a round has collected in this process, and what answering its clients needs to know of it."""

import asyncio
import math
import secrets
from dataclasses import dataclass, field
from typing import Protocol

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact
from fedlm.fl_core.deployment.server.reports.streaming_sum import StreamingSum
from fedlm.fl_core.deployment.server.reports.upload_buffers import UploadBuffer
from fedlm.fl_core.rounds.round_loop import RoundPlan


@dataclass
class Participant:
    """A selected client."""

    receipt: messages.UploadReply | None = None  # the answer to its last upload, once there is one
    upload_id: bytes = b""
    receiving: asyncio.Task | None = None  # the task that receives its upload now
    adding: asyncio.Task | None = None  # the task that adds its report, once that is whole; nothing cancels it
    begun: tuple[bytes, UploadBuffer] | None = None  # id, and what came, of an upload whose connection broke
    bytes_down: int = 0


@dataclass
class Attempt:
    """What an attempt at a round has collected; it changes in the event loop's thread alone, but for `sum`."""

    plan: RoundPlan
    parameters: ServedArtifact
    sum: StreamingSum  # of the reports so far; of one worker thread alone
    opened: float  # when it was opened, then when its first client was selected, by the loop's clock
    deadline: float = math.inf  # when reports are refused, by the loop's clock
    token: bytes = field(default_factory=lambda: secrets.token_bytes(16))  # its name, which nobody can guess
    run: str = ""  # the name of its run, which no other has
    participants: dict[int, Participant] = field(default_factory=dict)
    accepted: list[int] = field(default_factory=list)  # numbers of the clients whose reports count
    declined: int = 0  # selected clients that answered without an update
    refused: int = 0  # reports that were refused for good
    bytes_down: int = 0
    bytes_up: int = 0
    steps: int = 0  # local steps behind the accepted reports
    closed: bool = False  # whether reports are refused from now on


class RoundCollection(Protocol):
    """An attempt and the right to add reports to it, which this process has alone or shares with others.

    `claim` and `give_back` are called in the thread that adds reports, the rest in the event loop's.
    """

    @property
    def attempt(self) -> Attempt:
        """What was collected here."""
        ...

    def claim(self, client: int, upload_id: bytes) -> messages.UploadReply | None:
        """Take the right to add a client's report, which is whole: None where it may be added, else the answer."""
        ...

    def give_back(self, client: int) -> None:
        """Give the right back: the report cannot be added."""
        ...

    def answered(self, client: int, receipt: messages.UploadReply) -> None:
        """Note that a client has its final answer, which is in `attempt.participants`."""
        ...
