"""What clients and servers agree on, beside the messages of `messages.proto`."""

import hashlib
import struct
from collections.abc import Mapping, Sequence

PROTOCOL = 3
"""Version of the messages; a client of another is turned away when it checks in, and told which ones are spoken."""

LARGEST_CHUNK = 4 << 20
"""Bytes of the largest chunk that a client takes."""

LONGEST_POPULATION = 128
"""Characters of a population's name."""

CHECK_IN, UPLOAD, ARTIFACTS = "/check-in", "/upload", "/artifacts/"
"""Paths: `POST` a `CheckInRequest`; `PUT` an update's bytes; `GET` an artifact by its digest in hex."""

SECURE_SUM = "/secure-sum"
"""Path: `POST` a `SecureRequest`."""

LOG = "/log"
"""Path: `POST` a `LogRequest`."""

ENROL = "/enrol"
"""Path of enrolment, at a port of its own: `POST` an `EnrolRequest`."""

CLIENT_NAME = "fedlm-client"
"""Field by which a client names itself where it has no certificate."""

CLIENT_CERTIFICATE = "fedlm-client-certificate"
"""Field in which a proxy where TLS ends passes on a client's certificate: PEM, escaped as in addresses."""

FIRST_CHUNK = "first_chunk"
"""Of the query of an artifact: where to go on."""

UPLOAD_HEADER = "fedlm-upload"
"""Field of an upload: its `UploadHeader` in base64."""

CHUNK_BYTES = "fedlm-chunk-bytes"
"""Field of an answer that is an artifact: bytes of its chunks, but for the last."""

MESSAGE = "application/x-protobuf"

UPLOAD_MAGIC = b"FLU2"
"""What an upload begins with, before the first four bytes of its plan's digest."""


def upload_plan_digest(
    scheme: int, version: int, settings: Mapping[str, int], shapes: Sequence[Sequence[int]]
) -> bytes:
    """Compute the SHA-256 of how an update becomes bytes, laid out as docs/protocol.md says."""
    named = sorted((name.encode(), value) for name, value in settings.items())
    digest = hashlib.sha256(struct.pack("<III", scheme, version, len(named)))
    for name, value in named:
        digest.update(struct.pack(f"<I{len(name)}sI", len(name), name, value))
    digest.update(struct.pack("<I", len(shapes)))
    for shape in shapes:
        digest.update(struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
    return digest.digest()
