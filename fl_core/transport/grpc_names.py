"""What the gRPC server and the gRPC client agree on."""

SERVICE = "fedlm.Federation"
CHECK_IN, DOWNLOAD, UPLOAD = "CheckIn", "Download", "Upload"
CLIENT_NAME = "fedlm-client"
"""Metadata by which a client names itself where it has no certificate."""

_OVERHEAD = 1 << 16


def message_limits(chunk_bytes: int) -> list[tuple[str, int]]:
    """Make the options that bound every message, before it is parsed.

    Args:
      chunk_bytes: of the largest chunk.

    Returns:
      Options of a gRPC server or channel.
    """
    limit = chunk_bytes + _OVERHEAD
    return [("grpc.max_receive_message_length", limit), ("grpc.max_send_message_length", limit)]
