"""How a device gets its credentials: it makes a key that never leaves it, and a one-time token gets the certificate."""

import asyncio
import ssl
from pathlib import Path

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import KeysError, RefusedError, TransportError, UnknownArtifactError, WrongServerError
from fedlm.fedlm_client.link.credentials import read_certificates, read_key
from fedlm.fedlm_client.link.http_channel import HttpChannel
from fedlm.fedlm_client.link.protocol import ENROL
from fedlm.fl_core.atomic_files import create_privately, make_folder
from fedlm.fl_core.deployment.security.certificates import certificate_pem, key_pem, make_request, new_key
from fedlm.fl_core.deployment.security.credentials import write_credentials
from fedlm.fl_core.errors import ConfigurationError

_UNUSED_KEY = "enrolment.key"


def enrol_device(server: str, authority: Path, token: str, folder: Path) -> None:
    """Ask a server's enrolment for a certificate, and write the device's credentials into a folder.

    A try that broke off can be repeated with the same token and folder, whether or not the server had answered it.

    Raises:
      KeysError: the server cannot be reached, is not one that the authority (a PEM file) signed for, or refuses.
      ConfigurationError: the folder has credentials already.
    """
    if (folder / "client.pem").exists():
        raise ConfigurationError(f"{folder}: has credentials already; give another folder, or remove it to enrol again")
    believed = b"".join(map(certificate_pem, read_certificates(authority)))
    make_folder(folder, private=True)
    path = folder / _UNUSED_KEY
    if not path.exists():
        create_privately(path, key_pem(new_key()))
    key = read_key(path)
    certificate = asyncio.run(enrol(server, believed, token, make_request(key)))
    write_credentials(folder, believed, certificate, key_pem(key))
    path.unlink()


async def enrol(server: str, authority: bytes, token: str, request: bytes) -> bytes:
    """Ask a server's enrolment, at host and port, for a certificate in PEM.

    Args:
      authority: certificates that may have signed the server's, in PEM; no other server is talked to.
      request: see `fedlm.fl_core.deployment.security.certificates.make_request`.

    Raises:
      KeysError: the server cannot be reached, is another one, or refuses.
    """
    channel = HttpChannel(server, "", ssl.create_default_context(cadata=authority.decode("ascii")))
    try:
        asked = messages.EnrolRequest(token=token, request=request)
        return (await channel.ask(ENROL, asked, messages.EnrolReply)).certificate
    except (RefusedError, UnknownArtifactError) as error:
        raise KeysError(f"{server} refuses: {error}") from error
    except WrongServerError as error:
        raise KeysError(f"{server}: is not the server that the authority signed for: {error}") from error
    except TransportError as error:
        raise KeysError(
            f"{server}: cannot be reached, or is not the server that the authority signed for ({error})"
        ) from error
    finally:
        await channel.close()
