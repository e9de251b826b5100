"""What a client leaves to those who train: JAX, a plan in a process with limits, or whatever else a device has."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from . import messages_pb2 as messages
from .link.calls import Chunk, DownloadRequest
from .text.example_store import Examples


class Channel(Protocol):
    """A connection to a server. Every call may raise `TransportError`, `RefusedError` or `UnknownArtifactError`."""

    async def check_in(self, request: messages.CheckInRequest) -> messages.CheckInReply:
        """Say that the device is ready."""
        ...

    def download(self, request: DownloadRequest) -> AsyncIterator[Chunk]:
        """Receive the chunks of an artifact in order."""
        ...

    async def upload(self, header: messages.UploadHeader, pieces: AsyncIterator[bytes]) -> messages.UploadReply:
        """Send a report: a header, then the upload's bytes in order; these are asked for once the server wants them."""
        ...

    async def secure_sum(self, request: messages.SecureRequest) -> messages.SecureReply:
        """Say something in a secure sum, or ask again."""
        ...

    async def log(self, request: messages.LogRequest) -> messages.LogReply:
        """Ask what the server's log has of a run."""
        ...

    async def close(self) -> None:
        """Hang up."""
        ...


class Update(NamedTuple):
    """What training came to.

    Attributes:
      upload: the compressed update, as it travels.
      num_examples: that the client trains on.
      loss: summed over tokens and local steps.
      tokens: summed over local steps.
      gradient_norm: summed over local steps.
    """

    upload: bytes
    num_examples: int
    loss: float
    tokens: float
    gradient_norm: float

    @staticmethod
    def zeros(header: bytes, size: int) -> "Update":
        """Make what a client adds to a secure sum that has nothing to add: an upload of zeros behind its header."""
        return Update(header + bytes(size - len(header)), 0, 0.0, 0.0, 0.0)

    def declared_in(self, header: messages.UploadHeader) -> bytes:
        """Give the bytes of the upload, once its header says what it is."""
        header.num_examples = self.num_examples
        header.loss, header.tokens, header.gradient_norm = self.loss, self.tokens, self.gradient_norm
        return self.upload


class EndedError(Exception):
    """Training ended before there was an update."""

    def __init__(self, outcome: "messages.UploadHeader.Outcome"):
        super().__init__(outcome)
        self.outcome = outcome


def adds_zeros(ended: EndedError, asked: messages.RoundConfiguration) -> bool:
    """Say whether a client that ended so adds zeros to a secure sum, so that nobody learns of whose text that tells."""
    tells_of_text = ended.outcome != messages.UploadHeader.NOT_ALLOWED
    return tells_of_text and asked.HasField("secure_sum")


class Fetch(Protocol):
    """Downloads an artifact, going on where the last try broke off."""

    async def __call__(
        self, description: messages.Artifact, largest: int | None = None, option: str = "largest_download"
    ) -> bytearray:
        """Fetch what a server describes, of no more bytes than the `largest`, which an option sets; see
        `fedlm_client.link.artifacts.ArtifactAssembly` for errors."""
        ...


@dataclass(frozen=True)
class Round:
    """A round that a client may take part in.

    Attributes:
      asked: what the server asks for; not trusted.
      examples: version of the device's text.
      max_batches: local steps at most.
      tell: counts that the server learns something of the text. Call it before the server can tell, from how or when
        the call ends, what the text is.
      before_step: raises `EndedError` where there is no time for another local step, or the device may take none now.
    """

    asked: messages.RoundConfiguration
    examples: object
    max_batches: int
    tell: Callable[[], None]
    before_step: Callable[[], None]


class Trainer(Protocol):
    """Who trains on a device's text.

    Attributes:
      text: the device's.
    """

    text: Examples

    def introduce(self) -> messages.CheckInRequest:
        """Say what it can train, for a check-in."""
        ...

    def depends_on(self, asked: messages.RoundConfiguration, examples: object) -> object:
        """Name all on this device that an update follows from, the version of its text among it: with the same name the
        same request gets the same update. Raises ClientError where that cannot be read."""
        ...

    async def fetch(self, asked: messages.RoundConfiguration, fetch: Fetch) -> Any:
        """Fetch what a round needs, and check it; no text is looked at. Raises ClientError where it refuses."""
        ...

    def train(self, of_round: Round, fetched: Any) -> Update:
        """Train for a round with what was fetched, in a thread.

        Raises:
          EndedError: there is no update.
          ClientError: the server asks for what this client cannot do, or does not allow.
        """
        ...

    def close(self) -> None:
        """Free what it holds; a training under way ends."""
        ...
