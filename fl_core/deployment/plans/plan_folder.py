"""A plan in a folder, as it is exported."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedlm.fl_core.atomic_files import refuse_filled, whole_folder
from fedlm.fl_core.deployment.plans.plan import FORMAT, VERSION, Plan
from fedlm.fl_core.deployment.plans.programs import count_operations
from fedlm.fl_core.deployment.security.plan_keys import PURPOSE
from fedlm.fl_core.errors import ConfigurationError, DataError, setting

MANIFEST_FILE, SIGNATURE_FILE, TOKENIZER_FILE = "manifest.json", "manifest.sig", "tokenizer.json"
_KEY_BEGINS = b"-----BEGIN PUBLIC KEY-----"
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
    files = {MANIFEST_FILE: plan.manifest, PROGRAM_FILES["step"]: plan.step, PROGRAM_FILES["finish"]: plan.finish}
    write_folder(out, files | {TOKENIZER_FILE: tokenizer}, signature)


def write_folder(out: Path, files: Mapping[str, bytes], signature: bytes | None) -> None:
    """Write files, and the signature of the manifest among them where there is one, as `write_plan` does."""
    refuse_filled(out)
    if signature is not None:
        files = {**files, SIGNATURE_FILE: signature}
    with whole_folder(out) as made:
        for name, content in files.items():
            (made / name).write_bytes(content)


def read_plan(folder: Path) -> FoundPlan:
    """Read a plan from its folder.

    Raises:
      DataError: a file is missing, or is not the one that the manifest names.
    """
    with reading(folder):
        content, manifest = read_manifest(folder, FORMAT, VERSION)
        read_named(folder / TOKENIZER_FILE, manifest["tokenizer"])
        programs = {name: read_named(folder / file, manifest["programs"][name]) for name, file in PROGRAM_FILES.items()}
        return FoundPlan(
            Plan(content, programs["step"], programs["finish"]),
            manifest,
            {name: count_operations(program) for name, program in programs.items()},
            read_signature(folder),
        )


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn whatever is wrong with a plan that is read from a folder into a `DataError`."""
    path = folder / MANIFEST_FILE
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path}: no plan can be read ({error}); give the {setting('out')} of `fedlm plan export`"
        ) from error


def read_manifest(folder: Path, form: str, version: int) -> tuple[bytes, dict[str, Any]]:
    """Read the manifest of a folder, which must be of a format; use it within `reading`."""
    path = folder / MANIFEST_FILE
    content = path.read_bytes()
    manifest = json.loads(content)
    if (manifest["format"], manifest["version"]) != (form, version):
        raise DataError(f"{path}: is no {form} of version {version}; export the plan again")
    return content, manifest


def read_named(path: Path, described: dict[str, Any]) -> bytes:
    """Read a file that a manifest describes; `DataError`: it is another one."""
    # What has another size, however large, is not read into memory.
    fits = "bytes" not in described or path.stat().st_size == described["bytes"]
    content = path.read_bytes() if fits else b""
    if not fits or hashlib.sha256(content).hexdigest() != described["sha256"]:
        raise DataError(f"{path}: is not what the manifest names; export the plan again")
    return content


def read_signature(folder: Path) -> bytes | None:
    """Read the signature of a plan; None where it has none."""
    path = folder / SIGNATURE_FILE
    return path.read_bytes() if path.exists() else None


def signed_by(manifest: bytes, signature: bytes | None, path: Path) -> bool:
    """Say whether a manifest is signed with a public key in a PEM file; `ConfigurationError`: there is none."""
    try:
        # Several follow each other in a file while one key follows another.
        parts = path.read_bytes().split(_KEY_BEGINS)[1:] or [b""]
        keys = [serialization.load_pem_public_key(_KEY_BEGINS + part) for part in parts]
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: no public key can be read ({error}); `fedlm keys plan` makes one") from error
    for key in keys:
        if not isinstance(key, Ed25519PublicKey):
            raise ConfigurationError(f"{path}: is no key for plans, which are Ed25519; `fedlm keys plan` makes one")
        with suppress(InvalidSignature):
            key.verify(signature or b"", PURPOSE + manifest)
            return True
    return False
