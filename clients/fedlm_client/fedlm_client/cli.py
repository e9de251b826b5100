"""`fedlm-client`: take part in a deployment by plans."""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from .client import Client
from .errors import ClientError, printable
from .files import held_alone
from .limits import Limits, PlanLimits
from .link.credentials import client_name, client_tls
from .link.http_channel import HttpChannel
from .own_participation import OwnParticipation
from .plans.plan_trainer import PlanTrainer
from .plans.signature import read_public_keys
from .secure_aggregation.device import SecureSums
from .secure_aggregation.floors import Floors
from .text.example_store import ExampleStore
from .transparency.receipts import Receipts

_USER_ERROR, _INTERRUPTED = 2, 130
_LIMITS = ("largest_download", "max_batches", "max_training_seconds", "first_backoff", "longest_backoff")
_OFFERED = [*fields(PlanLimits), *(field for field in fields(Limits) if field.name in _LIMITS)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
      The exit status: 0 when the run is over, or this client has taken part as often as it may; 2 where its owner must
      do something, since the server turns it away for one; 130 when interrupted.
    """
    arguments = _parser().parse_args(argv)
    try:
        _run(arguments)
        return 0
    except ClientError as error:
        # A server may have chosen some of the words.
        print(f"fedlm-client: {printable(str(error))}", file=sys.stderr)
        return _USER_ERROR
    except KeyboardInterrupt:
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fedlm-client", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="take part until the run is over, with text that stays on this device")
    run.add_argument("--server", required=True, help="host and port of the server")
    run.add_argument("--data", type=Path, required=True, help='lines of {"text": "..."}')
    run.add_argument("--credentials", type=Path, help="folder with ca.pem, client.pem and client.key")
    run.add_argument("--insecure", action="store_true", help="plain text, to a server on loopback alone")
    run.add_argument("--name", help="name of this client with --insecure")
    run.add_argument("--proxy", help="host and port of a proxy that carries what is encrypted; none but this is used")
    run.add_argument("--population", nargs="+", default=[], help="whose this device is; those it knows otherwise")
    run.add_argument("--record", type=Path, help="file that counts this device's rounds; beside its text otherwise")
    run.add_argument("--accept-plan", action="store_true", help="accept the plan or run shown now")
    run.add_argument("--require-plan", action="store_true", help="take part where one is shown alone")
    run.add_argument("--secure-sums", action="store_true", help="take part where updates are masked alone")
    run.add_argument("--least-cohort", type=int, help="fewest clients of a secure sum; 10 where not given")
    run.add_argument("--least-noise", type=float, help="least noise multiplier of a secure sum; none where not given")
    run.add_argument("--receipts", type=Path, help="file, or folder of several devices, for what they saw of the log")
    run.add_argument("--plan-key", type=Path, required=True, help="public key of whose plans to run, plan.pub")
    for field in _OFFERED:
        kind = float if isinstance(field.default, float) else int
        flag = f"--{field.name.replace('_', '-')}"
        run.add_argument(flag, type=kind, default=field.default, help=f"{field.default:g} where not given")
    return parser


def _run(arguments: argparse.Namespace) -> None:
    if arguments.insecure == (arguments.credentials is not None):
        raise ClientError("give --credentials, or --insecure and --name to speak plain text on loopback")
    name, tls = arguments.name, None
    if arguments.credentials is not None:
        name, tls = client_name(arguments.credentials), client_tls(arguments.credentials)

    def dial() -> HttpChannel:
        return HttpChannel(arguments.server, name, tls, arguments.proxy)

    def notice(words: str) -> None:
        print(f"fedlm-client {name}: {words}", file=sys.stderr, flush=True)

    keys = read_public_keys(arguments.plan_key)
    trainer = PlanTrainer(ExampleStore(arguments.data), keys, _limits(PlanLimits, arguments), notice)
    record = arguments.record or arguments.data.with_name(arguments.data.name + ".participation.json")
    receipts = None if arguments.receipts is None else Receipts(arguments.receipts, name)
    owner = {"accept_plan": arguments.accept_plan, "require_plan": arguments.require_plan}
    participation = OwnParticipation(record, **owner, receipts=receipts, populations=arguments.population)
    client = Client(
        dial,
        trainer,
        limits=_limits(Limits, arguments),
        notice=notice,
        participation=participation,
        sums=_sums(arguments),
    )
    with held_alone(record):
        client.run()


def _sums(arguments: argparse.Namespace) -> SecureSums | None:
    given = {name: vars(arguments)[name] for name in ("least_cohort", "least_noise")}
    asked = {name: value for name, value in given.items() if value is not None}
    for name, value in asked.items():
        flag = f"--{name.replace('_', '-')}"
        if not arguments.secure_sums:
            raise ClientError(f"{flag} does nothing without --secure-sums; give that too, or leave it out")
        if not 0 < value < math.inf:
            raise ClientError(f"{flag} is {value}, but must be positive")
    if not arguments.secure_sums:
        return None
    if arguments.credentials is None:
        raise ClientError("--secure-sums needs a certificate, with which the client signs its keys; give --credentials")
    floors = Floors(asked.get("least_cohort", Floors.least_cohort), noise_multiplier=asked.get("least_noise", 0.0))
    return SecureSums.read(arguments.credentials, floors)


def _limits(kind: type[Any], arguments: argparse.Namespace) -> Any:
    given = vars(arguments)
    return kind(**{field.name: given[field.name] for field in fields(kind) if field.name in given})
