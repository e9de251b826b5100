"""Names that both sides share; apart from what carries calls, so that reading options does not need it."""

CLIENT_NAME = "fedlm-client"
"""Field of HTTP by which a client names itself where it has no certificate."""

LONGEST_POPULATION = 128
"""Characters of a population's name."""
