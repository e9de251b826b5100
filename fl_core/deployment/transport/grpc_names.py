"""What the gRPC server and the gRPC client agree on."""

SERVICE = "fedlm.Federation"
CHECK_IN, DOWNLOAD, UPLOAD = "CheckIn", "Download", "Upload"
WANTED = "fedlm-wanted"
"""Metadata by which the server says that it wants more of an upload than its first part."""

_OVERHEAD = 1 << 16
_WINDOW, _FRAME = 1 << 18, 1 << 20


def flow_options() -> list[tuple[str, int]]:
    """Make the options that bound what a connection holds of messages that nobody has read yet.

    Left alone, gRPC measures the connection and lets its buffers grow with it: on a fast one, to megabytes for each of
    a server's clients.
    """
    return [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", _WINDOW), ("grpc.http2.max_frame_size", _FRAME)]


def message_limits(chunk_bytes: int) -> list[tuple[str, int]]:
    """Make the options that bound every message, before it is parsed; returns options of a gRPC server or channel."""
    limit = chunk_bytes + _OVERHEAD
    return [("grpc.max_receive_message_length", limit), ("grpc.max_send_message_length", limit)]
