"""What can go wrong with a secure sum on the server's side."""


class AbandonedError(Exception):
    """An attempt cannot come to a sum any more; the message says why."""


class RefusedAnswerError(Exception):
    """A member's answer is not taken: it is late, not what was asked, or not the one that it gave before."""
