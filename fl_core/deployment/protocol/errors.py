"""What can go wrong at the server's end of a call; `fedlm.fedlm_client.errors` has what both sides know."""


class TooManyCallsError(Exception):
    """A client asks for more than its share; later it may ask again."""


class MalformedError(Exception):
    """Bytes are not a message of this protocol."""


class BrokenUploadError(Exception):
    """The bytes of an upload break off, or something else is among them."""
