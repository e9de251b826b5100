"""Keys: what the authority signs is believed, a token buys one certificate, and a revoked name is let in no more."""

import datetime
import io
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedlm.commands.cli import main
from fedlm.fedlm_client.errors import KeysError, RefusedError
from fedlm.fedlm_client.link.credentials import (
    CLIENT,
    SERVER,
    authority_tls,
    check_certificate,
    client_name,
    common_name,
    read_credentials,
)
from fedlm.fl_core.deployment.addresses import loopback_only
from fedlm.fl_core.deployment.security import certificates, keys, revocations
from fedlm.fl_core.deployment.security.certificates import make_request, new_key
from fedlm.fl_core.deployment.security.credentials import CertifiedNames, ClientCertificate, server_tls
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.errors import ConfigurationError


def certified(*names, ends=3600.0, serial=1):
    return ClientCertificate(names, time.time() + ends, serial)


DAYS, REQUEST = datetime.timedelta(days=9), make_request(new_key())


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return Authority.create(tmp_path_factory.mktemp("shared") / "keys")


@pytest.fixture
def authority(tmp_path):
    return Authority.create(tmp_path / "keys")


def test_only_their_owner_can_read_private_keys(authority, tmp_path):
    authority.make_server(["fl.example.org"])
    authority.make_client("alice")
    authority.make_token("bob")
    secret = [path for path in (tmp_path / "keys").rglob("*") if path.suffix in (".key", ".json")]
    assert len(secret) == 4
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secret)
    assert not list((tmp_path / "keys").rglob("*.partial"))


def test_credentials_that_the_other_side_would_refuse_are_refused_at_once(authority, tmp_path, monkeypatch):
    authority.make_server(["fl.example.org", "10.0.0.1"])
    server = read_credentials(tmp_path / "keys", SERVER)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == ["fl.example.org"]
    assert server_tls(tmp_path / "keys").get_ca_certs() == []
    folder, others = authority.make_client("alice"), Authority.create(tmp_path / "other").make_client("alice")
    assert client_name(folder) == "alice"
    (folder / "client.key").chmod(0o640)
    with pytest.raises(KeysError, match="chmod 600"):
        read_credentials(folder, CLIENT)
    (folder / "client.key").chmod(0o600)
    (folder / "ca.pem").write_bytes((others / "ca.pem").read_bytes())
    with pytest.raises(KeysError, match="not signed by the authority"):
        read_credentials(folder, CLIENT)
    (folder / "client.pem").write_bytes((others / "client.pem").read_bytes())
    with pytest.raises(KeysError, match="belongs to another key"):
        read_credentials(folder, CLIENT)
    monkeypatch.setattr(certificates, "_EARLIER", -datetime.timedelta(hours=1))
    with pytest.raises(KeysError, match="this clock is behind"):
        read_credentials(authority.make_client("bob"), CLIENT)
    (folder / "client.key").write_bytes(b"-----BEGIN PRIVATE KEY-----\n!")
    with pytest.raises(KeysError, match="no private key"):
        read_credentials(folder, CLIENT)
    (folder / "ca.pem").unlink()
    with pytest.raises(KeysError, match=r"ca\.pem: no certificate can be read"):
        authority_tls(folder)


def test_a_token_buys_one_certificate_for_one_device(authority):
    token, key = authority.make_token("alice"), new_key()
    content = authority.enrol(token, make_request(key))
    certificate = x509.load_pem_x509_certificate(content)
    assert common_name(certificate) == "alice"
    assert certificate.public_key() == key.public_key()
    assert authority.enrol(token, make_request(key)) == content, "the answer was lost, and the device asks again"
    for refused, why in ((token, "used by another device"), ("0" * 64, "not known"), ("x" * 10_000, "too long")):
        with pytest.raises(RefusedError, match=why):
            authority.enrol(refused, make_request(new_key()))
    with pytest.raises(KeysError, match="alice has a certificate"):
        authority.make_token("alice")
    assert [one.name for one in authority.issued()] == ["alice"]
    again = authority.make_token("alice", again=True)
    assert authority.enrol(again, make_request(new_key())) != content


def test_two_tokens_for_one_name_make_one_client(authority):
    first, second = authority.make_token("alice"), authority.make_token("alice")
    with pytest.raises(RefusedError, match="there is a newer one"):
        authority.enrol(first, make_request(new_key()))
    authority.enrol(second, make_request(new_key()))
    assert len(authority.issued()) == 1


def test_one_device_of_a_name_is_let_in_and_it_is_the_latest(authority, tmp_path):
    def enrolled(**how):
        content = authority.enrol(authority.make_token("alice", **how), make_request(new_key()))
        return x509.load_pem_x509_certificate(content).serial_number

    identify, first = CertifiedNames(tmp_path / "keys"), enrolled()
    assert identify.check(certified("alice", serial=first)) == "alice"
    second = enrolled(again=True)
    assert identify.check(certified("alice", serial=second)) == "alice"
    with pytest.raises(RefusedError, match="alice no longer counts"):
        identify.check(certified("alice", serial=first))
    assert sorted(one.revoked for one in authority.issued()) == [False, True]


@pytest.mark.parametrize(
    ("minutes", "advice"),
    [(30, "this clock is behind, .* set the clock"), (-24 * 60, "make a new one with `fedlm keys`, or set the clock")],
)
def test_a_clock_that_is_off_is_said_with_both_times_and_their_zone(tmp_path, minutes, advice):
    now = datetime.datetime.now(datetime.UTC)
    begins = now + datetime.timedelta(minutes=minutes)
    ends = begins + datetime.timedelta(hours=20)
    certificate = SimpleNamespace(not_valid_before_utc=begins, not_valid_after_utc=ends)
    valid = rf"valid from {begins:%Y-%m-%d %H:%M:%S} UTC to {ends:%Y-%m-%d %H:%M:%S} UTC"
    with pytest.raises(KeysError, match=rf"{valid}, but this machine's clock says {now:%Y-%m-%d %H}:.* UTC; {advice}"):
        check_certificate(tmp_path, certificate, None, [])


def test_of_many_devices_with_one_token_one_gets_a_certificate(authority):
    token = authority.make_token("alice", again=True)

    def attempt(request):
        try:
            return bool(authority.enrol(token, request))
        except RefusedError:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, [make_request(new_key()) for _ in range(8)])) == 1


def test_tokens_end(authority, monkeypatch):
    token = authority.make_token("alice", hours=1)
    later = time.time() + 3601
    monkeypatch.setattr(keys.time, "time", lambda: later)
    with pytest.raises(RefusedError, match="has expired"):
        authority.enrol(token, make_request(new_key()))


def test_a_revoked_name_is_let_in_no_more_and_not_given_again(authority, tmp_path):
    authority.make_client("alice")
    token = authority.make_token("alice", again=True)
    identify = CertifiedNames(tmp_path / "keys")
    assert identify.check(certified("alice")) == "alice"
    authority.revoke("alice")
    with pytest.raises(RefusedError, match="alice was revoked"):
        identify.check(certified("alice"))
    with pytest.raises(RefusedError, match="revoked"):
        authority.enrol(token, make_request(new_key()))
    with pytest.raises(KeysError, match="not given again"):
        authority.make_token("alice", again=True)
    with pytest.raises(KeysError, match="no certificate was issued"):
        authority.revoke("bob")
    assert [one.revoked for one in authority.issued()] == [True]


def test_nobody_is_let_in_without_a_name_or_without_a_list_of_the_revoked(authority, tmp_path):
    identify = CertifiedNames(tmp_path / "keys")
    for names in ([], ["a", "b"], ["fedlm server"], ["../keys"], [""], ["\ufffd"], ["a" * 65], ["a\n"]):
        with pytest.raises(RefusedError, match="names no client"):
            identify.check(certified(*names))
    revoked = tmp_path / "keys" / "revoked" / "list"
    assert identify.check(certified("alice")) == "alice"
    for damage in (lambda: revoked.write_text("alice\n"), lambda: revoked.write_bytes(b"\xff\n"), revoked.unlink):
        damage()
        with pytest.raises(RefusedError, match="list of revoked clients cannot be read, so nobody is let in"):
            identify.check(certified("alice"))
        with pytest.raises(KeysError, match="revoked/list"):
            CertifiedNames(tmp_path / "keys")


def test_the_list_of_the_revoked_is_one_file_that_holds_what_is_still_valid_alone(authority, tmp_path, monkeypatch):
    folder, identify, today = tmp_path / "keys", CertifiedNames(tmp_path / "keys"), datetime.datetime.now(datetime.UTC)
    for one in ("bob", "eve"):
        authority.make_client(one, days=1)
    authority.revoke("eve")
    numbers = []
    for renewal in range(12):
        # Months go by, a renewal each nine days, of a certificate for thirty.
        monkeypatch.setattr(revocations, "_today", lambda renewal=renewal: (today + renewal * DAYS).date())
        monkeypatch.setattr(certificates, "_EARLIER", -renewal * DAYS)
        content = authority.enrol(authority.make_token("alice", days=30 + 9 * renewal, again=True), REQUEST)
        numbers.append(x509.load_pem_x509_certificate(content).serial_number)
        lines = (folder / "revoked" / "list").read_text().splitlines()
        assert len(lines) <= 4 + (renewal < 1)
        assert [path.name for path in (folder / "revoked").iterdir()] == ["list"]
    for number in numbers[-3:-1]:
        with pytest.raises(RefusedError, match="alice no longer counts"):
            identify.check(certified("alice", serial=number))
    assert identify.check(certified("alice", serial=numbers[-1])) == "alice"
    assert len(list((folder / "issued" / "alice").iterdir())) <= 6
    assert len(list((folder / "tokens").iterdir())) <= 10
    assert "eve" not in (folder / "revoked" / "list").read_text(), "no certificate of it is valid"
    with pytest.raises(KeysError, match="not given again"):
        authority.make_token("eve", again=True)


def test_revocations_of_several_processes_at_once_are_all_on_the_list(authority, tmp_path):
    names = [f"client{number}" for number in range(24)]
    for name in names:
        authority.make_client(name)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: Authority(tmp_path / "keys").revoke(name), names))
    for name in names:
        with pytest.raises(RefusedError, match="was revoked"):
            CertifiedNames(tmp_path / "keys").check(certified(name))


def test_a_certificate_that_is_made_while_its_client_is_revoked_is_not_given(authority, monkeypatch):
    authority.make_client("alice")
    token, note = authority.make_token("alice", again=True), Authority._note

    def revoked_meanwhile(self, *words):
        self.revoke("alice")
        note(self, *words)

    monkeypatch.setattr(Authority, "_note", revoked_meanwhile)
    with pytest.raises(RefusedError, match="alice was revoked"):
        authority.enrol(token, REQUEST)


def test_an_authority_is_not_made_twice_and_hosts_are_hosts(authority, tmp_path):
    with pytest.raises(KeysError, match="has an authority already"):
        Authority.create(tmp_path / "keys")
    (tmp_path / "keys" / "ca.pem").unlink()
    Authority.create(tmp_path / "keys")  # goes on where an interruption left a key alone
    for host in ("fl.example.org:8470", "", "a b", "https://fl"):
        with pytest.raises(KeysError, match="is not a host"):
            authority.make_server([host])
    with pytest.raises(KeysError, match="0 days"):
        authority.make_server([], days=0)


def test_plain_text_is_for_loopback_alone():
    for address in ("127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"):
        loopback_only(address)
    for address in ("0.0.0.0:1", "[::]:1", "10.0.0.1:1", "fl.example.org:1", "127.0.0.1.example.org:1"):
        with pytest.raises(ConfigurationError, match="loopback alone"):
            loopback_only(address)
    for address in (":1", "::1:1", "https://127.0.0.1:1"):
        with pytest.raises(ConfigurationError, match="must be HOST:PORT"):
            loopback_only(address)


def other_requests():
    pem = serialization.Encoding.PEM
    kinds = rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return [builder.sign(key, hashes.SHA256()).public_bytes(pem) for key in kinds]


def test_requests_with_other_keys_are_refused(authority):
    token = authority.make_token("alice")
    for request in other_requests():
        with pytest.raises(RefusedError, match="P-256"):
            authority.enrol(token, request)


@given(st.one_of(st.binary(max_size=300), st.tuples(st.integers(0, len(REQUEST) - 1), st.integers(1, 255))))
@settings(suppress_health_check=list(HealthCheck))
def test_damaged_requests_are_refused_with_a_reason(shared, damage):
    if not hasattr(shared, "fuzzed"):
        shared.fuzzed = shared.make_token("fuzzed")
    if isinstance(damage, bytes):
        request = damage
    else:
        request = bytearray(REQUEST)
        request[damage[0]] ^= damage[1]
    try:
        shared.enrol(shared.fuzzed, bytes(request))
    except RefusedError:
        return
    assert x509.load_pem_x509_csr(bytes(request)).is_signature_valid


def test_a_server_certificate_made_again_keeps_its_hosts_unless_others_are_named(tmp_path, capsys):
    keys = ("--keys", str(tmp_path / "keys"))
    main(["keys", "ca", *keys])
    main(["keys", "server", *keys, "--host", "fl.example.org", "10.0.0.1"])
    main(["keys", "server", *keys])
    assert {"fl.example.org", "10.0.0.1", "localhost"} <= set(Authority(tmp_path / "keys").server_hosts())
    assert "no longer" not in capsys.readouterr().out
    main(["keys", "server", *keys, "--host", "fl2.example.org"])
    assert "it is no longer for fl.example.org, 10.0.0.1" in capsys.readouterr().out
    assert "fl.example.org" not in Authority(tmp_path / "keys").server_hosts()


def test_a_token_is_read_from_a_file_or_from_standard_input(tmp_path, capsys, monkeypatch):
    enrol = [
        "keys",
        "enrol",
        "--server",
        "127.0.0.1:1",
        "--ca",
        str(tmp_path / "ca.pem"),
        "--out",
        str(tmp_path / "out"),
    ]
    assert main([*enrol, "--token", str(tmp_path / "none")]) == 2
    assert "none: no token can be read" in capsys.readouterr().err
    main(["keys", "ca", "--keys", str(tmp_path)])
    for words in ([], ["--token", str(tmp_path / "token")]):
        (tmp_path / "token").write_text("0" * 64 + "\n")
        monkeypatch.setattr("sys.stdin", io.StringIO("0" * 64 + "\n"))
        assert main([*enrol, *words]) == 2
        assert "127.0.0.1:1: cannot be reached" in capsys.readouterr().err
