"""A plan's programs as other runtimes take them, for devices whose owners ask for that: machine code for IREE's runtime
where there is no compiler, and models for LiteRT.

They lie in a folder with one folder for each target, of machine code as `fedlm-client compile` fills it, of a model as
`fedlm plan export --format litert` makes it; the server has neither a compiler nor a converter.
"""

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fedlm.fl_core.deployment.plans.litert.folder import MODEL_FILE, read_litert_plan
from fedlm.fl_core.deployment.plans.litert.model import VERSION
from fedlm.fl_core.deployment.plans.plan import Plan
from fedlm.fl_core.deployment.plans.plan_folder import MANIFEST_FILE, SIGNATURE_FILE, TOKENIZER_FILE
from fedlm.fl_core.deployment.security.plan_keys import PlanSigner
from fedlm.fl_core.errors import ConfigurationError, DataError, setting

PURPOSE = b"fedlm modules 1\n"
"""What precedes a statement on modules where it is signed."""

IREE, LITERT = "iree", "litert"
"""The runtimes that there are modules for; they are the encodings of these, too."""

_FORMAT, _VERSION, _LITERT_VERSION = "fedlm-modules", 1, str(VERSION)
_TARGET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class ModuleFiles(NamedTuple):
    """What a plan's modules are read from; unequal to what it was before a file was changed."""

    paths: tuple[Path, ...]
    # Device, number, size and time of the last change, in nanoseconds; why there are none of what is no file.
    states: tuple[tuple[int, ...] | str, ...]

    @classmethod
    def of(cls, folder: Path, names: Iterable[str]) -> "ModuleFiles":
        """Look at files of a folder, as they are now."""
        paths = tuple(folder / name for name in names)
        return cls(paths, tuple(map(_state, paths)))

    @property
    def age(self) -> float:
        """Seconds since one of them was changed."""
        return time.time() - max((one[-1] for one in self.states if not isinstance(one, str)), default=0) / 1e9

    def read(self, plan: Plan, runtime: str, signer: PlanSigner) -> list[bytes]:
        """Read step and finish, which for LiteRT are the same model.

        Raises:
          OSError: they cannot be read, or are not as they were any more.
          DataError: a file is missing, or a model is none of this plan, or is not signed with the server's key.
        """
        for state in self.states:
            if isinstance(state, str):
                raise DataError(f"{state}; export the model again, with {setting('keys')}, into a folder of its own")
        if runtime == LITERT:
            contents = [_litert_model(self.paths[0].parent, plan, signer)] * 2
        else:
            contents = [path.read_bytes() for path in self.paths]
        if self.states != tuple(map(_state, self.paths)):
            raise OSError("they were changed while they were read")
        return contents


class ModuleFolder:
    """Modules by target."""

    def __init__(self, folder: Path):
        """Look into a folder, each time anew; `ConfigurationError`: it is none."""
        if not os.path.isdir(folder) or not os.access(folder, os.X_OK):
            raise ConfigurationError(
                f"{folder}: is no folder of compiled modules that can be entered; `fedlm-client compile` writes them"
            )
        self._folder = folder

    def find(self, plan: Plan, runtime: str, target: str, version: str) -> ModuleFiles | None:
        """Find what was made of a plan.

        Args:
          plan: the plan.
          runtime: what a client says that it has, of which nothing is trusted.
          target: what it takes, the same.
          version: of the runtime, the same; of LiteRT, of how models are made for it.
        """
        if _TARGET.fullmatch(target) is None:
            return None
        folder = self._folder / target
        if (runtime, target, version) == (LITERT, LITERT, _LITERT_VERSION) and os.path.isdir(folder):
            # What is missing of a model is found out where it is read, so that it is said.
            return ModuleFiles.of(folder, (MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE, SIGNATURE_FILE))
        if runtime != IREE:
            return None
        digests = (hashlib.sha256(program).hexdigest() for program in (plan.step, plan.finish))
        found = ModuleFiles.of(folder, (module_name(digest, version) for digest in digests))
        # A folder has modules of many plans.
        return None if any(isinstance(state, str) for state in found.states) else found


def _state(path: Path) -> tuple[int, ...] | str:
    try:
        found = path.stat()
    except OSError as error:
        return f"{path}: cannot be read ({error.strerror})"
    if not stat.S_ISREG(found.st_mode) or not found.st_size:
        return f"{path}: is no file, or is empty"
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns


def _litert_model(folder: Path, plan: Plan, signer: PlanSigner) -> bytes:
    found = read_litert_plan(folder)
    if found.signature != signer.sign(found.plan.manifest):
        raise DataError(
            f"{folder / MANIFEST_FILE}: is not signed with this server's key for plans; export it again, with "
            f"{setting('keys')}"
        )
    plans = found.manifest.get("plans")
    if not isinstance(plans, list) or plan.digest not in plans:
        raise DataError(
            f"{folder / MANIFEST_FILE}: is of other plans than {plan.digest[:12]}, which clients are offered; export "
            "it again from this server's settings, with its versions of fedlm and JAX"
        )
    return found.plan.model


def module_name(sha256: str, version: str) -> str:
    """Name the file of the module that IREE of a version compiles of a program, as `fedlm-client` does."""
    return f"{hashlib.sha256(f'{sha256} {version}'.encode()).hexdigest()}.vmfb"


def statement_on(plan: Plan, runtime: str, target: str, version: str, step: bytes, finish: bytes) -> bytes:
    """Say, for a signature, of which plan two modules are, for which runtime, target and version; JSON in UTF-8."""
    modules = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        for name, content in (("step", step), ("finish", finish))
    }
    about = {"plan": plan.digest, "runtime": runtime, "runtime_version": version, "target": target}
    return json.dumps({"format": _FORMAT, "version": _VERSION, **about, "modules": modules}).encode()
