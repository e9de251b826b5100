"""A plan in a folder, as it is exported."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedlm.fl_core.atomic_files import whole_folder
from fedlm.fl_core.deployment.plans.plan import FORMAT, VERSION, Plan
from fedlm.fl_core.deployment.plans.programs import count_operations
from fedlm.fl_core.deployment.security.plan_keys import PURPOSE
from fedlm.fl_core.errors import ConfigurationError, DataError

MANIFEST_FILE, SIGNATURE_FILE, TOKENIZER_FILE = "manifest.json", "manifest.sig", "tokenizer.json"
PROGRAM_FILES = {"step": "step.stablehlo", "finish": "finish.stablehlo"}


class FoundPlan(NamedTuple):
    """A plan that was read from a folder, and fits its manifest."""

    plan: Plan
    manifest: dict[str, Any]
    operations: dict[str, dict[str, int]]  # of each program, how often it has which
    signature: bytes | None


def write_plan(out: Path, plan: Plan, signature: bytes | None, tokenizer: bytes) -> None:
    """Write a plan into a folder of its own, whole or not at all; unsigned where the signature is None.

    Raises:
      ConfigurationError: there is something at `out`.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out}: is there already; give --out a folder that is not, or is empty")
    files = {
        MANIFEST_FILE: plan.manifest,
        PROGRAM_FILES["step"]: plan.step,
        PROGRAM_FILES["finish"]: plan.finish,
        TOKENIZER_FILE: tokenizer,
        **({} if signature is None else {SIGNATURE_FILE: signature}),
    }
    with whole_folder(out) as made:
        for name, content in files.items():
            (made / name).write_bytes(content)


def read_plan(folder: Path) -> FoundPlan:
    """Read a plan from its folder.

    Raises:
      DataError: a file is missing, or is not the one that the manifest names.
    """
    path = folder / MANIFEST_FILE
    try:
        content = path.read_bytes()
        manifest = json.loads(content)
        if (manifest["format"], manifest["version"]) != (FORMAT, VERSION):
            raise DataError(f"{path}: is no {FORMAT} of version {VERSION}; export the plan again")
        programs = {name: _program(folder / file, manifest["programs"][name]) for name, file in PROGRAM_FILES.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: no plan can be read ({error}); give the --out of `fedlm plan export`") from error
    signature = folder / SIGNATURE_FILE
    return FoundPlan(
        Plan(content, programs["step"], programs["finish"]),
        manifest,
        {name: count_operations(program) for name, program in programs.items()},
        signature.read_bytes() if signature.exists() else None,
    )


def _program(path: Path, described: dict[str, Any]) -> bytes:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != described["sha256"]:
        raise DataError(f"{path}: is not the program that the manifest names; export the plan again")
    return content


def signed_by(found: FoundPlan, path: Path) -> bool:
    """Say whether a plan is signed with the public key in a PEM file; `ConfigurationError`: there is none."""
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: no public key can be read ({error}); `fedlm keys plan` makes one") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigurationError(f"{path}: is no key for plans, which are Ed25519; `fedlm keys plan` makes one")
    try:
        key.verify(found.signature or b"", PURPOSE + found.plan.manifest)
    except InvalidSignature:
        return False
    return True
