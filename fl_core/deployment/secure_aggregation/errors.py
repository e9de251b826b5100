"""What can go wrong with a secure sum on the server's side."""


class AbandonedError(Exception):
    """An attempt cannot come to a sum any more; the message says why."""


class NotRecoveredError(AbandonedError):
    """Secrets cannot be computed from the shares that members gave.

    Attributes:
      culprits: indices of members that gave shares that do not fit those secrets that were found.
      dealers: of the secrets that were not found though there were shares enough. They dealt shares of another secret
        than they announced, or their neighbours lie.
    """

    def __init__(self, reason: str, culprits: frozenset[int], dealers: frozenset[int]):
        super().__init__(reason)
        self.culprits, self.dealers = culprits, dealers


class RefusedAnswerError(Exception):
    """A member's answer is not taken: it is late, not what was asked, or not the one that it gave before."""
