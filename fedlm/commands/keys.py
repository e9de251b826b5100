"""`fedlm keys`: credentials of a deployment's server, clients and operators."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tyro

from fedlm.clients.enrolment import enrol_device
from fedlm.commands.options import read_options
from fedlm.commands.sub_commands import run_choice
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.security.operator_access import OPERATOR_TOKEN_FILE, write_operator_token

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class _InFolder:
    folder: Path = Path("keys")
    """Where keys are kept."""


@dataclass(frozen=True, kw_only=True)
class AuthorityCommand(_InFolder):
    """Make the authority that signs all certificates of a deployment (ECDSA on P-256).

    Its key, `ca.key`, lets whoever has it make clients and servers: keep it where only its owner can read it. A server
    needs a copy only where it enrols clients.
    """

    days: int = 3650
    """For how long it is valid."""


@dataclass(frozen=True, kw_only=True)
class ServerCommand(_InFolder):
    """Make the server's certificate and key, in place of earlier ones."""

    host: tuple[str, ...] = ()
    """Names or addresses that clients dial, beside those of loopback."""
    days: int = 825
    """For how long it is valid."""


@dataclass(frozen=True, kw_only=True)
class MakeClientCommand(_InFolder):
    """Make a client's certificate and key, in the folder's clients/NAME, to be brought to its device.

    Where a device can enrol by itself (`fedlm keys token`), its key never leaves it.
    """

    name: tyro.conf.Positional[str]
    """The client's name: its identity, by which the server counts how often it takes part."""
    days: int = 365
    """For how long it is valid."""


@dataclass(frozen=True, kw_only=True)
class TokenCommand(_InFolder):
    """Make one-time tokens, with which devices enrol (`fedlm keys enrol`), and print them; only hashes are kept."""

    names: tyro.conf.Positional[tuple[str, ...]]
    """Names that the certificates will have. With several, each line is a name and its token."""
    hours: float = 72.0
    """For how long a token can be used."""
    days: int = 365
    """For how long the certificate will be valid."""
    again: bool = False
    """The same device asks again, because its certificate ends or its key is lost."""


@dataclass(frozen=True, kw_only=True)
class EnrolCommand:
    """On a device: make a key, and get a certificate for it with a token that the operator gave."""

    server: str
    """Host and port of the server's enrolment."""
    ca: Path
    """The authority's certificate, `ca.pem`, that the operator gave; no other server is talked to."""
    token: str
    """The token; - reads it from standard input, where nobody else on this machine sees it."""
    out: Path
    """Folder for the credentials, for `fedlm client --credentials`."""


@dataclass(frozen=True, kw_only=True)
class RevokeCommand(_InFolder):
    """Let a client in no more, from its next call on; the server need not be started again."""

    name: tyro.conf.Positional[str]
    """The client's name, which is not given again."""


@dataclass(frozen=True, kw_only=True)
class ListCommand(_InFolder):
    """List the clients' certificates: name, last day, and whether it was revoked."""


@dataclass(frozen=True, kw_only=True)
class OperatorCommand(_InFolder):
    """Make the token that operators show to see status and metrics, in place of an earlier one, and print it."""


def main(argv: list[str]) -> int:
    """Run `fedlm keys`."""
    purpose = "Certificates by which a deployment's server and clients know each other (mutual TLS)."
    choices = {name: (text, partial(_run, name)) for name, (text, _, _) in _ACTIONS.items()}
    return run_choice(argv, "fedlm keys", "action", purpose, choices, _EXAMPLES)


def _run(action: str, argv: list[str]) -> int:
    _, command, run = _ACTIONS[action]
    run(read_options(command, argv, f"fedlm keys {action}"))
    return 0


def _make_authority(command: AuthorityCommand) -> None:
    Authority.create(command.folder, command.days)
    print(f"authority: {command.folder / 'ca.pem'}; keep {command.folder / 'ca.key'} secret")


def _make_server(command: ServerCommand) -> None:
    hosts = tuple(dict.fromkeys((*command.host, *_LOOPBACK)))
    Authority(command.folder).make_server(hosts, command.days)
    print(f"server: {command.folder / 'server.pem'}, for {', '.join(hosts)}")


def _make_client(command: MakeClientCommand) -> None:
    print(f"client: {Authority(command.folder).make_client(command.name, command.days)}")


def _make_tokens(command: TokenCommand) -> None:
    authority = Authority(command.folder)
    for name in command.names:
        token = authority.make_token(name, command.hours, command.days, command.again)
        print(token if len(command.names) == 1 else f"{name} {token}")


def _enrol(command: EnrolCommand) -> None:
    token = sys.stdin.readline() if command.token == "-" else command.token
    enrol_device(command.server, command.ca, token.strip(), command.out)
    print(f"credentials: {command.out}")


def _revoke(command: RevokeCommand) -> None:
    Authority(command.folder).revoke(command.name)


def _list(command: ListCommand) -> None:
    for one in Authority(command.folder).issued():
        print(f"{one.name}  {one.ends:%Y-%m-%d}{'  revoked' * one.revoked}")


def _make_operator(command: OperatorCommand) -> None:
    command.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    print(write_operator_token(command.folder / OPERATOR_TOKEN_FILE))


_EXAMPLES = """To begin:

  fedlm keys ca
  fedlm keys server --host fl.example.org
  fedlm keys token alice"""
_ACTIONS: dict[str, tuple[str, type, Callable[[Any], None]]] = {
    "ca": ("make the authority that signs all certificates", AuthorityCommand, _make_authority),
    "server": ("make the server's certificate and key", ServerCommand, _make_server),
    "client": (
        "make a client's certificate and key here, to be brought to its device",
        MakeClientCommand,
        _make_client,
    ),
    "token": ("make a one-time token with which a device enrols", TokenCommand, _make_tokens),
    "enrol": ("on a device: make a key, and get a certificate for it with a token", EnrolCommand, _enrol),
    "revoke": ("let a client in no more", RevokeCommand, _revoke),
    "list": ("list the clients' certificates", ListCommand, _list),
    "operator": ("make the token that operators show", OperatorCommand, _make_operator),
}
