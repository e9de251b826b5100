"""Tells a server that is not the one to dial by how TLS fails. The client of plans has this file by a link."""

import ssl

_WRONG_NAME, _WRONG_TIME = (62, 63, 64), (9, 10)  # codes of OpenSSL
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")


def wrong_server(server: str, error: ssl.SSLError) -> str | None:
    """Say why TLS fails where it will fail again; None where a clock or a renewed certificate may mend it."""
    said, reason = getattr(error, "verify_message", ""), error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _WRONG_TIME:
            return None
        if error.verify_code in _WRONG_NAME:
            return f"the server at {server} has a certificate for other names ({said}); dial one that it has"
        return f"the server at {server} has a certificate of an authority that this client does not trust ({said})"
    if "UNKNOWN_CA" in reason or "CERTIFICATE_REQUIRED" in reason or "BAD_CERTIFICATE" in reason:
        return f"the server at {server} does not trust this client's certificate ({reason}); enrol with its authority"
    if reason in _NOT_TLS:
        return (
            f"the program at {server} does not speak TLS ({reason}); dial the address that the server has for clients"
        )
    return None
