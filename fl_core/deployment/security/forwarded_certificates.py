"""Certificates of clients whose TLS ends at a proxy, which passes on what it has verified in a field of each call."""

import datetime
from pathlib import Path
from urllib.parse import unquote

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedlm.fedlm_client.errors import RefusedError
from fedlm.fedlm_client.link.credentials import AUTHORITY_FILE, read_certificates, signed_by
from fedlm.fl_core.deployment.security.credentials import ClientCertificate, Reloading


class ForwardedCertificates:
    """Reads such a field: PEM, with what is no letter or digit escaped as in addresses."""

    def __init__(self, folder: Path):
        """Name the folder of keys, whose authority must have signed them; `KeysError`: there is none."""
        self._authorities = Reloading(folder, lambda keys: read_certificates(keys / AUTHORITY_FILE))

    def read(self, field: str | None) -> ClientCertificate:
        """Read a certificate; raises `RefusedError` where it is none, or not one of a client of the authority now."""
        if not field:
            raise RefusedError("the proxy passes on no certificate of a client")
        try:
            # Two values that somebody on the way has joined: the client's own, and the proxy's.
            if "," in field:
                raise ValueError("several certificates")
            found = x509.load_pem_x509_certificate(unquote(field).encode("ascii"))
            uses = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
            names = tuple(str(one.value) for one in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME))
        except Exception as error:
            # The parser raises whatever it likes.
            raise RefusedError("the proxy passes on something that is not a client's certificate") from error
        if ExtendedKeyUsageOID.CLIENT_AUTH not in uses or not any(
            signed_by(found, authority) for authority in self._authorities()
        ):
            raise RefusedError("the authority did not make the certificate that the proxy passes on")
        if found.not_valid_before_utc > datetime.datetime.now(datetime.UTC):
            raise RefusedError("the certificate that the proxy passes on is not valid yet")
        return ClientCertificate(names, found.not_valid_after_utc.timestamp(), found.serial_number)
