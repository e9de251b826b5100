"""`fedlm keys`: credentials of a deployment's server, clients and operators."""

import asyncio
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from fedlm.clients.device.enrolment import enrol_device
from fedlm.command_line.command import Command, Group
from fedlm.command_line.options import read_options
from fedlm.commands.deployment.operator_calls import OperatorCaller, OperatorOptions
from fedlm.fl_core.atomic_files import make_folder
from fedlm.fl_core.deployment.addresses import check_address
from fedlm.fl_core.deployment.security.certificates import MOST_DAYS, check_name
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.security.operator_access import OPERATOR_TOKEN_FILE, token_lines, write_operator_token
from fedlm.fl_core.deployment.security.people import check_person_name
from fedlm.fl_core.deployment.security.plan_keys import PLAN_KEY_FILE, create_plan_key
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.number_ranges import Range

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class _InFolder:
    keys: Path = Path("keys")
    """Folder of the keys."""


@dataclass(frozen=True, kw_only=True)
class AuthorityCommand(_InFolder):
    """Make the authority that signs all certificates of a deployment (ECDSA on P-256).

    Its key, `ca.key`, lets whoever has it make clients and servers: keep it where only its owner can read it. A server
    needs a copy only where it enrols clients.
    """

    days: Annotated[int, Range(least=1, most=MOST_DAYS)] = 3650
    """Days for which the certificate is valid."""

    def run(self) -> None:
        Authority.create(self.keys, self.days)
        print(f"authority: {self.keys / 'ca.pem'}; keep {self.keys / 'ca.key'} secret")


@dataclass(frozen=True, kw_only=True)
class ServerCommand(_InFolder):
    """Make the server's certificate and key, in place of earlier ones; a running server takes them up by itself."""

    host: tuple[str, ...] = ()
    """Names or addresses that clients dial, beside those of loopback. If none is given, those of the existing
    certificate."""
    days: Annotated[int, Range(least=1, most=MOST_DAYS)] = 825
    """Days for which the certificate is valid."""

    def run(self) -> None:
        authority = Authority(self.keys)
        before = authority.server_hosts()
        hosts = tuple(dict.fromkeys((*(self.host or before), *_LOOPBACK)))
        authority.make_server(hosts, self.days)
        print(f"server: {self.keys / 'server.pem'}, for {', '.join(hosts)}")
        if dropped := [host for host in before if host not in hosts]:
            print(f"it is no longer for {', '.join(dropped)}; if clients dial them, give them as --host too")


@dataclass(frozen=True, kw_only=True)
class MakeClientCommand(_InFolder):
    """Make a client's certificate and key, in the folder's clients/NAME, to be brought to its device.

    Where a device can enrol by itself (`fedlm keys token`), its key never leaves it.
    """

    name: tyro.conf.Positional[str]
    """The client's name: its identity, by which the server counts how often it takes part."""
    days: Annotated[int, Range(least=1, most=MOST_DAYS)] = 365
    """Days for which the certificate is valid."""

    def run(self) -> None:
        print(f"client: {Authority(self.keys).make_client(self.name, self.days)}")


@dataclass(frozen=True, kw_only=True)
class TokenCommand(_InFolder):
    """Make one-time tokens, with which devices enrol (`fedlm keys enrol`), and print them; only hashes are kept."""

    names: tyro.conf.Positional[tuple[str, ...]]
    """Names that the certificates will have. With several, each line is a name and its token."""
    hours: Annotated[float, Range(above=0, most=24 * MOST_DAYS)] = 72.0
    """Hours for which a token can be used."""
    days: Annotated[int, Range(least=1, most=MOST_DAYS)] = 365
    """Days for which the certificate will be valid."""
    again: bool = False
    """The same device asks again, because its certificate ends or it lost its key."""

    def run(self) -> None:
        authority = Authority(self.keys)
        for name in self.names:
            token = authority.make_token(name, self.hours, self.days, self.again)
            print(token if len(self.names) == 1 else f"{name} {token}")


@dataclass(frozen=True, kw_only=True)
class ServeCommand(_InFolder):
    """Give devices certificates for their tokens until stopped: in a process of its own, which alone needs the
    authority's key. A server of clients does without; both may have the folder, or the server a copy without `ca.key`.
    """

    address: str = "127.0.0.1:8472"
    """Where to listen: host and port; port 0 takes a free one."""
    log: Path | None = None
    """Log file. It is put aside at 64 MiB, and four such files are kept. If not given, the log goes to standard
    error."""

    def run(self) -> None:
        from fedlm.fl_core.deployment.event_log import json_log
        from fedlm.fl_core.deployment.roles import enrol_devices

        with json_log(self.log):
            asyncio.run(enrol_devices(self.keys, self.address))


@dataclass(frozen=True, kw_only=True)
class EnrolCommand:
    """On a device: make a key, and get a certificate for it with a token that the operator gave."""

    server: str
    """Host and port of the server's enrolment."""
    ca: Path
    """The authority's certificate, `ca.pem`, from the operator. The client talks to no other server."""
    token: Path | None = None
    """File with the token. If not given, standard input. Other users of this machine can see the arguments of
    commands."""
    out: Path
    """Folder for the credentials, for `fedlm client --credentials`."""

    def run(self) -> None:
        check_address(self.server)
        try:
            token = sys.stdin.readline() if self.token is None else self.token.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{self.token}: no token can be read ({error}); give its file") from error
        enrol_device(self.server, self.ca, token.strip(), self.out)
        print(f"credentials: {self.out}")


@dataclass(frozen=True, kw_only=True)
class RevokeCommand(_InFolder):
    """Refuse a client, from its next call on; you need not restart the server."""

    name: tyro.conf.Positional[str]
    """The client's name. No other client ever gets it."""
    server: str | None = None
    """Host and port of the operators' listener of a `fedlm server`, which is asked to refuse the client, in place of
    the authority here. It needs the role key_administrator."""
    token_file: Path | None = None
    """File with your token for that server; see `fedlm run list --help`."""

    def run(self) -> None:
        if self.server is None:
            Authority(self.keys).revoke(self.name)
            return
        options = OperatorOptions(server=self.server, keys=self.keys, token_file=self.token_file)
        OperatorCaller(options).post(f"/clients/{check_name(self.name)}/revoke")


@dataclass(frozen=True, kw_only=True)
class ListCommand(_InFolder):
    """List the clients' certificates: name, last day, and whether it was revoked."""

    def run(self) -> None:
        for one in Authority(self.keys).issued():
            print(f"{one.name}  {one.ends:%Y-%m-%d}{'  revoked' * one.revoked}")


@dataclass(frozen=True, kw_only=True)
class OperatorCommand(_InFolder):
    """Make the token with which operators may do everything, in place of an earlier one, and print it.

    With a name: make the token of a person or a program, in NAME.token, and print the lines that let it in, for the
    file of `fedlm server --access`.
    """

    name: tyro.conf.Positional[str | None] = None
    """Name of the person or program: letters, digits, and . _ @ + -."""

    def run(self) -> None:
        make_folder(self.keys, private=True)
        if self.name is None:
            print(write_operator_token(self.keys / OPERATOR_TOKEN_FILE))
            return
        check_person_name(self.name)
        print(token_lines(self.name, write_operator_token(self.keys / f"{self.name}.token")))


@dataclass(frozen=True, kw_only=True)
class PlanCommand(_InFolder):
    """Make the key with which the server signs plans (Ed25519), for clients that have none of our code.

    `plan.key` stays with the server; `plan.pub` is brought to devices, which run the programs of plans that it has
    signed. To change the key, make another in another folder. Put its public key after the old one in the file of every
    device. Then give the server the new key.
    """

    def run(self) -> None:
        public = create_plan_key(self.keys)
        print(f"key for plans: devices need {public}; keep {self.keys / PLAN_KEY_FILE} secret")


_ACTIONS: dict[str, tuple[str, Any]] = {
    "ca": ("make the authority that signs all certificates", AuthorityCommand),
    "server": ("make the server's certificate and key", ServerCommand),
    "client": ("make a client's certificate and key here, for you to bring to its device", MakeClientCommand),
    "token": ("make a one-time token with which a device enrols", TokenCommand),
    "serve": ("give devices certificates for their tokens, over the network", ServeCommand),
    "enrol": ("on a device: make a key, and get its certificate with a token", EnrolCommand),
    "revoke": ("refuse a client from now on", RevokeCommand),
    "list": ("list the clients' certificates", ListCommand),
    "plan": ("make the key with which the server signs plans", PlanCommand),
    "operator": ("make the token by which operators are let in", OperatorCommand),
}
_EXAMPLES = """To begin:

  fedlm keys ca
  fedlm keys server --host fl.example.org
  fedlm keys token alice"""


def _run(action: str, argv: list[str]) -> int:
    read_options(_ACTIONS[action][1], argv, f"fedlm keys {action}").run()
    return 0


COMMAND = Group(
    "fedlm keys",
    "action",
    "Certificates of a deployment's server and clients (mutual TLS).",
    {name: (text, Command(options, partial(_run, name))) for name, (text, options) in _ACTIONS.items()},
    _EXAMPLES,
)
