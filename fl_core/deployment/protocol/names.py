"""Names that transports share; apart from these, so that reading options needs none of them."""

from typing import Literal

TransportName = Literal["grpc", "http"]

CLIENT_NAME = "fedlm-client"
"""Metadata of gRPC, or field of HTTP, by which a client names itself where it has no certificate."""

LONGEST_POPULATION = 128
"""Characters of a population's name."""
