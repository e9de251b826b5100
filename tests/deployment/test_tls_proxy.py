"""TLS may end at a proxy that is named by its certificate; nobody else speaks for another client."""

import asyncio
import base64
import contextlib
import socket
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.credentials import client_tls, read_certificate
from fedlm.fedlm_client.errors import RefusedError
from fedlm.fedlm_client.protocol import CHECK_IN, CLIENT_CERTIFICATE
from fedlm.fl_core.deployment.security.certificates import certificate_pem
from fedlm.fl_core.deployment.security.forwarded_certificates import ForwardedCertificates
from fedlm.fl_core.deployment.security.keys import Authority
from tests.support.serving import Handlers, serving

BODY = messages.CheckInRequest(protocol=2).SerializeToString()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("proxy")
    authority = Authority.create(made / "keys")
    authority.make_server(["127.0.0.1"])
    for name in ("ann", "ben", "gone", "edge"):
        authority.make_client(name)
    authority.revoke("gone")
    Authority.create(made / "others").make_client("ann")
    return made


def field(path):
    return f"{CLIENT_CERTIFICATE}: {quote(path.read_text(), safe='')}"


def asked(folder, caller, *fields, tls_proxy="edge"):
    """The status of a check-in with some fields, and whose it was; the caller has a certificate."""

    def ask(port):
        context = client_tls(folder / "keys" / "clients" / caller)
        with (
            socket.create_connection(("127.0.0.1", port), 20) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
        ):
            head = [f"POST {CHECK_IN} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(BODY)}", *fields, "", ""]
            encrypted.sendall("\r\n".join(head).encode() + BODY)
            return int(encrypted.recv(1 << 12).split()[1])

    async def go():
        handlers = Handlers()
        async with serving(handlers, folder / "keys", tls_proxy=tls_proxy) as server:
            return await asyncio.to_thread(ask, server.port), handlers.peers

    return asyncio.run(asyncio.wait_for(go(), 30))


def test_a_proxy_calls_in_the_name_of_the_client_whose_certificate_it_passes_on(folder):
    assert asked(folder, "edge", field(folder / "keys/clients/ann/client.pem")) == (200, ["ann"])


def test_clients_may_dial_without_the_proxy_too(folder):
    assert asked(folder, "ben") == (200, ["ben"])


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("others/clients/ann/client.pem", "no certificate that the authority made"),
        ("keys/clients/gone/client.pem", "gone was revoked"),
        ("keys/server.pem", "no certificate that the authority made"),
        ("keys/ca.pem", "no certificate of a client"),
    ],
)
def test_a_proxy_passes_on_no_certificate_that_tls_would_refuse(folder, caplog, path, why):
    assert asked(folder, "edge", field(folder / path)) == (401, [])
    assert [why in record.fields["why"] for record in caplog.records if record.message == "call_refused"] == [True]


@pytest.mark.parametrize("sent", ["", "?", "%2D%2D", "-----BEGIN CERTIFICATE-----", "caf%C3%A9"])
def test_what_is_no_certificate_is_refused(folder, sent):
    status, peers = asked(folder, "edge", f"{CLIENT_CERTIFICATE}: {sent}")
    assert (status, peers) == (401, [])


def test_a_certificate_with_any_byte_changed_is_refused_or_says_the_same(folder):
    read = ForwardedCertificates(folder / "keys").read
    certificate = read_certificate(folder / "keys/clients/ann/client.pem")
    content = certificate.public_bytes(Encoding.DER)
    honest = read(quote(certificate_pem(certificate)))
    for place, byte in enumerate(content):
        for other in {15, byte ^ 1} - {byte}:
            damaged = content[:place] + bytes([other]) + content[place + 1 :]
            encoded = base64.encodebytes(damaged).decode()
            with contextlib.suppress(RefusedError):
                # The signature has more than one encoding.
                assert read(quote(f"-----BEGIN CERTIFICATE-----\n{encoded}-----END CERTIFICATE-----\n")) == honest


def test_a_proxy_that_says_nothing_of_the_client_is_refused(folder):
    assert asked(folder, "edge") == (401, [])


def test_a_field_that_is_there_twice_is_refused(folder):
    ann, ben = (field(folder / f"keys/clients/{name}/client.pem") for name in ("ann", "ben"))
    assert asked(folder, "edge", ann, ben) == (400, [])


@pytest.mark.parametrize("tls_proxy", ["edge", None])
def test_nobody_else_speaks_for_another_client(folder, tls_proxy):
    assert asked(folder, "ben", field(folder / "keys/clients/ann/client.pem"), tls_proxy=tls_proxy) == (401, [])
