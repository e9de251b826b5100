"""How a run ended, as the `status` of its summary."""

FINISHED = "finished"
DIVERGED = "diverged"
UNANSWERED = "unanswered"
"""No client answered in any round, so that the parameters are those that the run began with."""
