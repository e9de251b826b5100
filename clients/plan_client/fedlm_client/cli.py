"""`fedlm-client`: take part in a deployment by plans."""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from fedlm_client.client import Client, Settings
from fedlm_client.errors import ClientError
from fedlm_client.http_channel import Channel
from fedlm_client.limits import Limits
from fedlm_client.own_participation import OwnParticipation
from fedlm_client.signature import read_public_keys

_USER_ERROR, _INTERRUPTED, _LONGEST_ERROR = 2, 130, 1000


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0 on success, 2 where the owner must do something, 130 interrupted."""
    arguments = _parser().parse_args(argv)
    try:
        limits = Limits(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Limits)})
        _run(arguments, limits)
        return 0
    except ClientError as error:
        # A server may have chosen some of the words.
        said = "".join(one for one in str(error)[:_LONGEST_ERROR] if one.isprintable())
        print(f"fedlm-client: {said}", file=sys.stderr)
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
    run.add_argument("--name", help="what this client calls itself where it is insecure")
    run.add_argument("--proxy", help="host and port of a proxy that carries what is encrypted; none but this is used")
    run.add_argument("--record", type=Path, help="file that counts this device's rounds; beside its text otherwise")
    run.add_argument("--accept-plan", action="store_true", help="accept the plan of participation shown now")
    run.add_argument("--require-plan", action="store_true", help="take part where one is shown alone")
    run.add_argument("--plan-key", type=Path, required=True, help="public key of whose plans to run, plan.pub")
    for field in dataclasses.fields(Limits):
        kind = float if isinstance(field.default, float) else int
        flag = f"--{field.name.replace('_', '-')}"
        run.add_argument(flag, type=kind, default=field.default, help=f"{field.default:g} where not given")
    return parser


def _run(arguments: argparse.Namespace, limits: Limits) -> None:
    if arguments.insecure == (arguments.credentials is not None):
        raise ClientError("give --credentials, or --insecure and --name to speak plain text on loopback")
    channel = Channel(arguments.server, arguments.credentials, arguments.name, arguments.proxy)
    record = arguments.record or arguments.data.with_name(arguments.data.name + ".participation.json")
    settings = Settings(
        data=arguments.data,
        keys=read_public_keys(arguments.plan_key),
        limits=limits,
        notice=lambda words: print(f"fedlm-client {channel.name}: {words}", file=sys.stderr, flush=True),
    )
    Client(channel, settings, OwnParticipation(record, arguments.accept_plan, arguments.require_plan)).run()
