"""What the HTTP server and the HTTP client agree on."""

CHECK_IN, UPLOAD, ARTIFACTS = "/check-in", "/upload", "/artifacts/"
"""Paths: `POST` a `CheckInRequest`; `PUT` an update's bytes; `GET` an artifact by its digest in hex."""

ENROL = "/enrol"
"""Path of enrolment, at a port of its own: `POST` an `EnrolRequest`."""

CLIENT_CERTIFICATE = "fedlm-client-certificate"
"""Field in which a proxy where TLS ends passes on a client's certificate: PEM, escaped as in addresses."""

FIRST_CHUNK = "first_chunk"
"""Of the query of an artifact: where to go on."""

UPLOAD_HEADER = "fedlm-upload"
"""Field of an upload: its `UploadHeader` in base64."""

CHUNK_BYTES = "fedlm-chunk-bytes"
"""Field of an answer that is an artifact: bytes of its chunks, but for the last."""

MESSAGE = "application/x-protobuf"
