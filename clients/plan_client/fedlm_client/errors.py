"""What can go wrong, told apart by what follows from it."""


class ClientError(Exception):
    """The owner of the device must do something; the message says what."""


class PlanError(ClientError):
    """A plan is refused: it is not signed, contradicts itself, asks for too much or does not run."""


class WrongServerError(ClientError):
    """What answers is not what this client was set up to talk to. Trying again soon does not help."""


class TransportError(Exception):
    """The server cannot be reached, or the connection broke; trying again later may help."""


class GoneError(Exception):
    """What was asked for is not offered any more: the round is over."""
