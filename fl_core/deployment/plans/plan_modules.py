"""A plan's programs as other runtimes take them, for devices whose owners ask for that: machine code for IREE's runtime
where there is no compiler, and models for LiteRT.

They lie in a folder with one folder for each target, of machine code as `fedlm-client compile` fills it, of a model as
`fedlm plan export --format litert` makes it; the server has neither a compiler nor a converter.
"""

import hashlib
import json
import re
import stat
import time
from pathlib import Path
from typing import NamedTuple

from fedlm.fl_core.deployment.plans.litert.folder import MODEL_FILE, read_litert_plan
from fedlm.fl_core.deployment.plans.litert.model import VERSION
from fedlm.fl_core.deployment.plans.plan import Plan
from fedlm.fl_core.deployment.plans.plan_folder import MANIFEST_FILE, SIGNATURE_FILE
from fedlm.fl_core.deployment.security.plan_keys import PlanSigner
from fedlm.fl_core.errors import ConfigurationError, DataError

PURPOSE = b"fedlm modules 1\n"
"""What precedes a statement on modules where it is signed."""

IREE, LITERT = "iree", "litert"
"""The runtimes that there are modules for; they are the encodings of these, too."""

_FORMAT, _VERSION, _LITERT_VERSION = "fedlm-modules", 1, str(VERSION)
_TARGET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class ModuleFiles(NamedTuple):
    """What a plan's modules are read from; unequal to what it was before a file was changed."""

    paths: tuple[Path, ...]
    states: tuple[tuple[int, ...], ...]  # device, number, size and time of the last change, in nanoseconds

    @property
    def age(self) -> float:
        """Seconds since one of them was changed."""
        return time.time() - max(changed for *_, changed in self.states) / 1e9

    def read(self, plan: Plan, runtime: str, signer: PlanSigner) -> list[bytes]:
        """Read step and finish, which for LiteRT are the same model.

        Raises:
          OSError: they cannot be read, or are not as they were any more.
          DataError: a model is none of this plan, or is not signed with the server's key.
        """
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
        if not folder.is_dir():
            raise ConfigurationError(f"{folder}: is no folder of compiled modules; `fedlm-client compile` writes them")
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
        if runtime == LITERT and version == _LITERT_VERSION:
            # That a model is not signed is found out where it is read, so that it is said.
            signature = [SIGNATURE_FILE] if (folder / SIGNATURE_FILE).exists() else []
            names = [MANIFEST_FILE, MODEL_FILE, *signature]
        elif runtime == IREE:
            digests = (hashlib.sha256(program).hexdigest() for program in (plan.step, plan.finish))
            names = [module_name(digest, version) for digest in digests]
        else:
            return None
        paths = tuple(folder / name for name in names)
        try:
            return ModuleFiles(paths, tuple(map(_state, paths)))
        except OSError:
            return None


def _state(path: Path) -> tuple[int, ...]:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or not found.st_size:
        raise FileNotFoundError(f"{path}: is no module")
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns


def _litert_model(folder: Path, plan: Plan, signer: PlanSigner) -> bytes:
    found = read_litert_plan(folder)
    if not signer.has_signed(found.plan.manifest, found.signature):
        raise DataError(
            f"{folder / MANIFEST_FILE}: is not signed with this server's key for plans; export it again, with --keys"
        )
    if plan.digest not in found.manifest.get("plans", ()):
        raise DataError(
            f"{folder / MANIFEST_FILE}: is of other plans than {plan.digest[:12]}, which clients are offered; export "
            "it again from this server's settings, with its version of fedlm"
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
