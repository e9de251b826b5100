"""The authority of a deployment, in a folder: it signs certificates, enrols clients by one-time tokens, revokes them.

    ca.pem, ca.key            the authority; a server that enrols nobody needs no copy of its key
    server.pem, server.key    the server
    clients/NAME/             client credentials that were made here; a device that enrols keeps its key to itself
    issued/NAME/              certificates of a client, and an empty file `revoked` where it is let in no more
    tokens/                   SHA-256 of each one-time token, the name it is for and when it ends; the latest of a name
    revoked/                  the list of clients that were revoked, and of certificates that others followed; see
                              `fedlm.fl_core.deployment.security.revocations`

Several processes may use the folder at once: a file appears whole, and of two that are made under one name one wins.
"""

import contextlib
import datetime
import hashlib
import json
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedlm.fedlm_client.errors import KeysError, RefusedError
from fedlm.fedlm_client.link.credentials import AUTHORITY_FILE, SERVER, read_certificate, read_key
from fedlm.fl_core.atomic_files import create_privately, disk_errors, make_folder, write_atomically
from fedlm.fl_core.deployment.security.certificates import (
    MOST_DAYS,
    certificate_pem,
    check_name,
    hosts_of,
    key_pem,
    new_key,
    requested_key,
    sign_authority,
    sign_client,
    sign_server,
)
from fedlm.fl_core.deployment.security.credentials import write_credentials, write_pair
from fedlm.fl_core.deployment.security.revocations import (
    Revocations,
    begin_list,
    is_over,
    last_day,
    revoke,
    serial_entry,
)
from fedlm.fl_core.errors import ConfigurationError

AUTHORITY_DAYS, SERVER_DAYS, CLIENT_DAYS, TOKEN_HOURS = 3650, 825, 365, 72.0
_AUTHORITY_KEY, _REVOKED = "ca.key", "revoked"
_LONGEST_TOKEN, _LONGEST_REQUEST = 128, 8192


def shut_out(keys: Path, name: str) -> None:
    """Let a client in no more, by a server's folder of keys, which may lack the authority's own.

    Raises:
      ConfigurationError: that is no name, or no client's.
      DiskError: the list of revoked clients cannot be written.
    """
    try:
        with disk_errors(keys):
            if (keys / _AUTHORITY_KEY).exists():
                Authority(keys).revoke(name)
            else:
                # Who does not know the certificates takes the last day that one can have.
                last = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=MOST_DAYS)
                revoke(keys, {check_name(name): last})
    except KeysError as error:
        raise ConfigurationError(str(error)) from error


class Issued(NamedTuple):
    """A client's certificate."""

    name: str
    ends: datetime.datetime  # when it is valid no more
    revoked: bool  # whether the client is let in no more


class Authority:
    """A folder of keys, with the authority's own."""

    def __init__(self, folder: Path):
        """Open a folder that `create` made; raises `KeysError` where there is no authority."""
        self._folder = folder
        self._certificate, self._key = read_certificate(folder / AUTHORITY_FILE), read_key(folder / _AUTHORITY_KEY)

    @classmethod
    def create(cls, folder: Path, days: int = AUTHORITY_DAYS) -> "Authority":
        """Make an authority, and its folder where absent; raises `KeysError` where there is one."""
        make_folder(folder, private=True)
        for name in ("issued", "tokens"):
            (folder / name).mkdir(exist_ok=True, mode=0o700)
        begin_list(folder)
        if (folder / AUTHORITY_FILE).exists():
            raise KeysError(f"{folder}: has an authority already; give another folder to make another")
        with contextlib.suppress(FileExistsError):
            # There is a key where another process is doing the same, or was interrupted.
            create_privately(folder / _AUTHORITY_KEY, key_pem(new_key()))
        certificate = sign_authority(read_key(folder / _AUTHORITY_KEY), days)
        with contextlib.suppress(FileExistsError):
            create_privately(folder / AUTHORITY_FILE, certificate_pem(certificate))
        return cls(folder)

    def make_server(self, hosts: Sequence[str], days: int = SERVER_DAYS) -> None:
        """Make a server's credentials, in place of earlier ones; raises `KeysError` where a host is none."""
        key = new_key()
        certificate = sign_server(self._certificate, self._key, key.public_key(), hosts, days=days)
        write_pair(self._folder, SERVER, certificate_pem(certificate), key_pem(key))

    def server_hosts(self) -> tuple[str, ...]:
        """Give the names and addresses that the server's certificate is for; none where there is no certificate."""
        if not (self._folder / f"{SERVER}.pem").exists():
            return ()
        return hosts_of(read_certificate(self._folder / f"{SERVER}.pem"))

    def make_client(self, name: str, days: int = CLIENT_DAYS) -> Path:
        """Make a folder of a client's credentials, to be brought to its device.

        Raises:
          KeysError: the name is none, or has been given.
        """
        self._check_new(name)
        key, folder = new_key(), self._folder / "clients" / name
        certificate = certificate_pem(sign_client(self._certificate, self._key, key.public_key(), name, days=days))
        make_folder(folder, private=True)
        write_credentials(folder, certificate_pem(self._certificate), certificate, key_pem(key))
        self._note(name, secrets.token_hex(32), certificate)
        return folder

    def make_token(self, name: str, hours: float = TOKEN_HOURS, days: int = CLIENT_DAYS, again: bool = False) -> str:
        """Let a device enrol once, by a token which is kept nowhere; an earlier one of the same name counts no more.

        Args:
          name: that its certificate will have.
          hours: for which the token can be used.
          days: for which the certificate will be valid.
          again: the name may have been given before, to the same device. Its other certificates are let in no more once
            it has the new one.

        Raises:
          KeysError: the name is none, was revoked, or has been given; or hours or days are not positive.
        """
        self._check_new(name, again)
        if not (hours > 0 and days >= 1):
            raise KeysError(f"a token for {hours} hours and {days} days lets nobody in; give more than 0 of both")
        token = secrets.token_hex(32)
        facts = {"name": name, "days": days, "ends": time.time() + hours * 3600, "again": again}
        create_privately(self._token(token), json.dumps(facts))
        write_atomically(self._latest(name), _digest(token), private=True)
        return token

    def enrol(self, token: str, request: bytes) -> bytes:
        """Give a certificate for a token. The same device may ask again, should the answer have been lost.

        Neither the token nor the request is trusted; that and the certificate are in PEM.

        Raises:
          RefusedError: the token is unknown, used or has ended, or the request is none.
        """
        if len(token) > _LONGEST_TOKEN or len(request) > _LONGEST_REQUEST:
            raise RefusedError("the token or the request is too long to be one")
        try:
            facts = json.loads(self._token(token).read_bytes())
        except FileNotFoundError as error:
            raise RefusedError("the token is not known") from error
        name = facts["name"]
        if time.time() > facts["ends"]:
            raise RefusedError(f"the token of {name} has expired")
        if self.is_revoked(name):
            raise RefusedError(f"{name} was revoked")
        if not self._is_latest(name, token):
            raise RefusedError(f"the token of {name} no longer counts, because there is a newer one")
        try:
            key = requested_key(request)
        except KeysError as error:
            raise RefusedError(f"{name}: {error}") from error
        certificate = certificate_pem(sign_client(self._certificate, self._key, key, name, days=facts["days"]))
        if not facts["again"] and self._has_another(name, _digest(token)):
            raise RefusedError(f"{name} has a certificate already")
        try:
            self._note(name, _digest(token), certificate)
            if self.is_revoked(name):
                # That began after it was looked for, and may not have seen this certificate.
                raise RefusedError(f"{name} was revoked")
        except FileExistsError:
            before = read_certificate(self._issued(name) / f"{_digest(token)}.pem")
            if before.public_key() != key:
                raise RefusedError(f"the token of {name} was used by another device") from None
            certificate = certificate_pem(before)
        self._supersede(name, but=_digest(token))
        return certificate

    def revoke(self, name: str) -> None:
        """Let a client in no more, from its next call on; its name is not given again.

        Raises:
          KeysError: no client has the name.
        """
        if not self._issued(check_name(name)).exists():
            raise KeysError(f"no certificate was issued to {name!r}; `fedlm keys list` shows all")
        write_atomically(self._issued(name) / _REVOKED, "", private=True)
        days = [last_day(read_certificate(path)) for path in self._issued(name).glob("*.pem")]
        revoke(self._folder, {name: max(days)} if days else {})

    def is_revoked(self, name: str) -> bool:
        """Say whether a client is let in no more."""
        return (self._issued(check_name(name)) / _REVOKED).exists()

    def issued(self) -> list[Issued]:
        """List the clients' certificates by name, the newest of each name last."""
        revoked = Revocations(self._folder).entries()
        found = [(path.parent.name, read_certificate(path)) for path in (self._folder / "issued").glob("*/*.pem")]
        return sorted(
            Issued(name, one.not_valid_after_utc, self.is_revoked(name) or serial_entry(one.serial_number) in revoked)
            for name, one in found
        )

    def _check_new(self, name: str, again: bool = False) -> None:
        if self.is_revoked(check_name(name)):
            raise KeysError(f"{name} was revoked, and its name is not given again; give another")
        if not again and self._issued(name).exists():
            raise KeysError(
                f"{name} has a certificate: two devices with one name would count as one. Give another name, or say "
                "that the same device asks again"
            )

    def _token(self, token: str) -> Path:
        return self._folder / "tokens" / f"{_digest(token)}.json"

    def _latest(self, name: str) -> Path:
        return self._folder / "tokens" / f"{name}.latest"

    def _is_latest(self, name: str, token: str) -> bool:
        try:
            return self._latest(name).read_text() == _digest(token)
        except FileNotFoundError:
            return False

    def _supersede(self, name: str, but: str) -> None:
        """Let a client's other certificates count no more, and forget those that do not anyway."""
        others = {path: read_certificate(path) for path in self._issued(name).glob("*.pem") if path.stem != but}
        valid = {one: last_day(one) for one in others.values() if not is_over(last_day(one))}
        revoke(self._folder, {serial_entry(one.serial_number): day for one, day in valid.items()})
        for path, one in others.items():
            if one not in valid:
                path.unlink(missing_ok=True)
                (self._folder / "tokens" / f"{path.stem}.json").unlink(missing_ok=True)

    def _issued(self, name: str) -> Path:
        return self._folder / "issued" / name

    def _has_another(self, name: str, key: str) -> bool:
        return any(path.stem != key for path in self._issued(name).glob("*.pem"))

    def _note(self, name: str, key: str, certificate: bytes) -> None:
        self._issued(name).mkdir(exist_ok=True, mode=0o700)
        create_privately(self._issued(name) / f"{key}.pem", certificate)


def _digest(token: str) -> str:
    # Tokens are 256 random bits: nobody finds one from its hash, nor by trying.
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
