"""What can go wrong between a client and the server, whatever carries their messages."""


class TransportError(Exception):
    """The other side cannot be reached, or the connection broke; trying again later may help."""


class RefusedError(Exception):
    """The server refuses the call itself: who calls, or what was sent; trying again does not help."""


class WrongServerError(Exception):
    """What answers is not what this client was set up to talk to; the message says what is wrong. Trying again soon
    does not help."""


class TooManyCallsError(Exception):
    """A client asks for more than its share; later it may ask again."""


class MalformedError(Exception):
    """Bytes are not a message of this protocol."""


class UnknownArtifactError(Exception):
    """What was asked for is not offered, or not any more."""


class BrokenUploadError(Exception):
    """The bytes of an upload break off, or something else is among them."""
