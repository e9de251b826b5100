"""A plan for LiteRT in a folder, as it is exported."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from fedlm.fl_core.deployment.plans.litert.model import FORMAT, VERSION, LitertPlan
from fedlm.fl_core.deployment.plans.plan_folder import (
    MANIFEST_FILE,
    TOKENIZER_FILE,
    read_manifest,
    read_named,
    read_signature,
    reading,
    write_folder,
)

MODEL_FILE = "model.tflite"


class FoundLitertPlan(NamedTuple):
    """A plan for LiteRT that was read from a folder, and fits its manifest."""

    plan: LitertPlan
    manifest: dict[str, Any]
    signature: bytes | None


def write_litert_plan(out: Path, plan: LitertPlan, signature: bytes | None, tokenizer: bytes) -> None:
    """Write a plan into a folder of its own, whole or not at all; unsigned where the signature is None.

    Raises:
      ConfigurationError: there is something at `out`.
    """
    files = {MANIFEST_FILE: plan.manifest, MODEL_FILE: plan.model, TOKENIZER_FILE: tokenizer}
    write_folder(out, files, signature)


def is_litert_plan(folder: Path) -> bool:
    """Say whether a folder has a plan for LiteRT; `DataError`: it has none of any kind."""
    with reading(folder):
        return json.loads((folder / MANIFEST_FILE).read_bytes())["format"] == FORMAT


def read_litert_plan(folder: Path) -> FoundLitertPlan:
    """Read a plan for LiteRT from its folder.

    Raises:
      DataError: a file is missing, or is not the one that the manifest names.
    """
    with reading(folder):
        content, manifest = read_manifest(folder, FORMAT, VERSION)
        model = read_named(folder / MODEL_FILE, manifest["model"])
        read_named(folder / TOKENIZER_FILE, manifest["tokenizer"])
        return FoundLitertPlan(LitertPlan(content, model), manifest, read_signature(folder))
