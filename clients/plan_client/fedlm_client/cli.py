"""`fedlm-client`: take part in a deployment by plans, and compile plans for devices that have no compiler."""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from fedlm_client import runtimes
from fedlm_client.client import Client, Settings
from fedlm_client.errors import ClientError
from fedlm_client.http_channel import Channel
from fedlm_client.limits import Limits
from fedlm_client.manifest import check_limits, check_program, read_manifest
from fedlm_client.own_participation import OwnParticipation
from fedlm_client.signature import check_signature, read_public_keys

_USER_ERROR, _INTERRUPTED, _LONGEST_ERROR = 2, 130, 1000


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0 on success, 2 where the owner must do something, 130 interrupted."""
    arguments = _parser().parse_args(argv)
    try:
        limits = Limits(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Limits)})
        (_compile if arguments.command == "compile" else _run)(arguments, limits)
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
    run.add_argument("--runtime", choices=("auto", *runtimes.RUNTIMES), default="auto", help="what runs programs")
    run.add_argument(
        "--accept-modules",
        metavar="TARGET",
        help="run machine code of the server for this target, where its operator has compiled it (x86_64-linux, say)",
    )
    make = commands.add_parser("compile", help="compile an exported plan with IREE into a folder of modules")
    make.add_argument("folder", type=Path, help="the --out of `fedlm plan export`")
    make.add_argument(
        "--flag", action="append", default=[], help="of iree-compile, for another processor than this one's"
    )
    for one in (run, make):
        one.add_argument("--plan-key", type=Path, required=True, help="public key of whose plans to run, plan.pub")
        one.add_argument("--modules", type=Path, required=one is make, help="folder of modules that IREE compiled")
        for field in dataclasses.fields(Limits):
            kind = float if isinstance(field.default, float) else int
            flag = f"--{field.name.replace('_', '-')}"
            one.add_argument(flag, type=kind, default=field.default, help=f"{field.default:g} where not given")
    return parser


def _run(arguments: argparse.Namespace, limits: Limits) -> None:
    if arguments.insecure == (arguments.credentials is not None):
        raise ClientError("give --credentials, or --insecure and --name to speak plain text on loopback")
    channel = Channel(arguments.server, arguments.credentials, arguments.name, arguments.proxy)
    record = arguments.record or arguments.data.with_name(arguments.data.name + ".participation.json")
    settings = Settings(
        data=arguments.data,
        keys=read_public_keys(arguments.plan_key),
        runtime=runtimes.installed(arguments.runtime),
        modules=arguments.modules,
        accept_modules=arguments.accept_modules,
        limits=limits,
        notice=lambda words: print(f"fedlm-client {channel.name}: {words}", file=sys.stderr, flush=True),
    )
    Client(channel, settings, OwnParticipation(record, arguments.accept_plan, arguments.require_plan)).run()


def _compile(arguments: argparse.Namespace, limits: Limits) -> None:
    names = ("manifest.json", "manifest.sig", "step.stablehlo", "finish.stablehlo")
    try:
        described, signature, *contents = [(arguments.folder / name).read_bytes() for name in names]
    except OSError as error:
        raise ClientError(f"{arguments.folder}: no signed plan can be read ({error}); export it with --keys") from error
    check_signature(described, signature, read_public_keys(arguments.plan_key))
    manifest = read_manifest(described)
    check_limits(manifest, limits)
    for name, content in zip(("step", "finish"), contents, strict=True):
        check_program(getattr(manifest, name), content, name)
    flags = tuple(arguments.flag) or runtimes.HOST
    for path in runtimes.write_modules(manifest, described, contents, arguments.modules, flags):
        print(f"{path}: {path.stat().st_size:,} bytes")
