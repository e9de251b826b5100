"""A plan in a folder, as it is exported."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedlm.fl_core.atomic_files import refuse_filled, whole_folder
from fedlm.fl_core.deployment.plans.plan import FORMAT, VERSION, Plan
from fedlm.fl_core.deployment.security.plan_keys import PURPOSE
from fedlm.fl_core.errors import ConfigurationError, DataError, setting

MANIFEST_FILE, SIGNATURE_FILE, TOKENIZER_FILE = "manifest.json", "manifest.sig", "tokenizer.json"
MODEL_FILE = "model.tflite"
_KEY_BEGINS = b"-----BEGIN PUBLIC KEY-----"


class FoundPlan(NamedTuple):
    """A plan that was read from a folder, and fits its manifest."""

    plan: Plan
    manifest: dict[str, Any]
    signature: bytes | None


def write_plan(out: Path, plan: Plan, signature: bytes | None, tokenizer: bytes) -> None:
    """Write a plan into a folder of its own, whole or not at all; unsigned where the signature is None.

    Raises:
      ConfigurationError: there is something at `out`.
    """
    refuse_filled(out)
    files = {MANIFEST_FILE: plan.manifest, MODEL_FILE: plan.model, TOKENIZER_FILE: tokenizer}
    if signature is not None:
        files[SIGNATURE_FILE] = signature
    with whole_folder(out) as made:
        for name, content in files.items():
            (made / name).write_bytes(content)


def read_plan(folder: Path) -> FoundPlan:
    """Read a plan from its folder.

    Raises:
      DataError: a file is missing, or is not the one that the manifest names.
    """
    path, signed = folder / MANIFEST_FILE, folder / SIGNATURE_FILE
    with reading(folder):
        content = path.read_bytes()
        manifest = json.loads(content)
        if (manifest["format"], manifest["version"]) != (FORMAT, VERSION):
            raise DataError(f"{path}: is not a {FORMAT} of version {VERSION}; export the plan again")
        _read_named(folder / TOKENIZER_FILE, manifest["tokenizer"])
        model = _read_named(folder / MODEL_FILE, manifest["model"])
        return FoundPlan(Plan(content, model), manifest, signed.read_bytes() if signed.exists() else None)


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


def _read_named(path: Path, described: dict[str, Any]) -> bytes:
    """Read a file that a manifest describes; `DataError`: it is another one."""
    # What has another size, however large, is not read into memory.
    fits = path.stat().st_size == described["bytes"]
    content = path.read_bytes() if fits else b""
    if not fits or hashlib.sha256(content).hexdigest() != described["sha256"]:
        raise DataError(f"{path}: does not match the manifest; export the plan again")
    return content


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
            raise ConfigurationError(f"{path}: is not an Ed25519 key for plans; `fedlm keys plan` makes one")
        with suppress(InvalidSignature):
            key.verify(signature or b"", PURPOSE + manifest)
            return True
    return False
