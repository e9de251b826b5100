"""The names of the transports; apart from these, so that reading options needs none of them."""

from typing import Literal

TransportName = Literal["grpc", "http"]
