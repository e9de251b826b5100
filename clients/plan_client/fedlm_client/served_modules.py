"""Machine code of plans that a server has, for devices whose owners take it; docs/protocol.md describes it."""

import hashlib
import json
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedlm_client import messages_pb2 as messages
from fedlm_client.errors import PlanError
from fedlm_client.manifest import Manifest
from fedlm_client.signature import MODULES, check_signature

_FORMAT, _VERSION = "fedlm-modules", 1


class Digests(NamedTuple):
    """SHA-256, in hex, of both modules."""

    step: str
    finish: str


def read_statement(
    offered: "messages.PlanModules", keys: list[Ed25519PublicKey], manifest: Manifest, wanted: "messages.Runtime"
) -> Digests:
    """Read what is signed of a server's modules, and check that they are those that were asked for.

    Args:
      offered: as it came from the server.
      keys: whose plans the device runs.
      manifest: the plan's.
      wanted: the runtime that the device has announced.

    Raises:
      PlanError: none of the keys has signed it, or it is of another plan, target or version of the runtime.
    """
    check_signature(offered.statement, offered.signature, keys, MODULES)
    try:
        found: dict[str, Any] = json.loads(offered.statement)
        said = [found[name] for name in ("format", "version", "plan", "runtime", "runtime_version", "target")]
        digests = Digests(*(str(found["modules"][name]["sha256"]) for name in Digests._fields))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise PlanError(f"the statement on the plan's modules cannot be read ({type(error).__name__})") from error
    expected = [_FORMAT, _VERSION, manifest.digest, wanted.name, wanted.version, wanted.target]
    if said != expected:
        raise PlanError(
            f"the server's modules are of {_shown(said)}, but this client takes those of {_shown(expected)}"
        )
    return digests


def check_module(content: bytes, sha256: str, name: str) -> None:
    """Refuse, with `PlanError`, another module than the one that the statement names."""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise PlanError(f"the server's module {name} is not the one that its statement names")


def _shown(parts: list[Any]) -> str:
    form, version, plan, *rest = (str(one)[:64] for one in parts)
    return " ".join([form, version, "of plan", plan[:12], "for", *rest])
