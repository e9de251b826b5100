"""What can go wrong between a device and a server, told apart by what follows from it."""

_LONGEST_WORDS = 1000


def printable(words: str) -> str:
    """Leave out what a terminal takes for commands, or a log for another line, and what goes on and on."""
    return "".join(one for one in words[:_LONGEST_WORDS] if one.isprintable())


class ClientError(Exception):
    """The owner of the device must do something; the message says what."""


class PlanError(ClientError):
    """A plan is refused: it is not signed, contradicts itself, asks for too much or does not run."""


class WrongServerError(ClientError):
    """What answers is not what this client was set up to talk to; the message says what is wrong. Trying again soon
    does not help."""


class LogError(ClientError):
    """A server's log of what it tells devices does not hold: it lacks something, or was another before."""


class KeysError(ClientError):
    """A key or a certificate is missing, damaged, not valid now or not of this deployment."""


class RefusedError(Exception):
    """The server refuses the call itself: who calls, or what was sent; trying again does not help."""


class UnsafeSumError(Exception):
    """A secure sum is refused: what the server sent was changed or could show one client's values. The client says no
    more in this attempt."""


class TransportError(Exception):
    """The other side cannot be reached, or the connection broke; trying again later may help."""


class UnknownArtifactError(Exception):
    """What was asked for is not offered, or not any more."""
