"""A plan's programs as machine code, for devices with IREE's runtime and no compiler, whose owners ask for it.

Modules lie in a folder with one folder for each target, as `fedlm-client compile` fills it; the server has no compiler.
"""

import hashlib
import json
import re
import stat
import time
from pathlib import Path
from typing import NamedTuple

from fedlm.fl_core.deployment.plans.plan import Plan
from fedlm.fl_core.errors import ConfigurationError

PURPOSE = b"fedlm modules 1\n"
"""What precedes a statement on modules where it is signed."""

_FORMAT, _VERSION, _RUNTIME = "fedlm-modules", 1, "iree"
_TARGET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class ModuleFiles(NamedTuple):
    """Both modules of a plan, where they lie; unequal to what they were before one of them was changed."""

    step: Path
    finish: Path
    states: tuple[tuple[int, ...], ...]  # device, number, size and time of the last change, in nanoseconds

    @property
    def age(self) -> float:
        """Seconds since one of them was changed."""
        return time.time() - max(changed for *_, changed in self.states) / 1e9

    def read(self) -> list[bytes]:
        """Read step and finish; `OSError` where they cannot be read, or are not as they were any more."""
        contents = [path.read_bytes() for path in (self.step, self.finish)]
        if self.states != tuple(_state(path) for path in (self.step, self.finish)):
            raise OSError("they were changed while they were read")
        return contents


class ModuleFolder:
    """Compiled modules by target."""

    def __init__(self, folder: Path):
        """Look into a folder, each time anew; `ConfigurationError`: it is none."""
        if not folder.is_dir():
            raise ConfigurationError(f"{folder}: is no folder of compiled modules; `fedlm-client compile` writes them")
        self._folder = folder

    def find(self, plan: Plan, target: str, version: str) -> ModuleFiles | None:
        """Find what was compiled of a plan.

        Args:
          plan: the plan.
          target: what a client says that it takes, of which nothing is trusted.
          version: of its IREE, the same.
        """
        if _TARGET.fullmatch(target) is None:
            return None
        step, finish = (
            self._folder / target / module_name(hashlib.sha256(program).hexdigest(), version)
            for program in (plan.step, plan.finish)
        )
        try:
            return ModuleFiles(step, finish, (_state(step), _state(finish)))
        except OSError:
            return None


def _state(path: Path) -> tuple[int, ...]:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or not found.st_size:
        raise FileNotFoundError(f"{path}: is no module")
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns


def module_name(sha256: str, version: str) -> str:
    """Name the file of the module that IREE of a version compiles of a program, as `fedlm-client` does."""
    return f"{hashlib.sha256(f'{sha256} {version}'.encode()).hexdigest()}.vmfb"


def statement_on(plan: Plan, target: str, version: str, step: bytes, finish: bytes) -> bytes:
    """Say, for a signature, of which plan two modules are, for which target and version of IREE; JSON in UTF-8."""
    modules = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        for name, content in (("step", step), ("finish", finish))
    }
    about = {"plan": plan.digest, "runtime": _RUNTIME, "runtime_version": version, "target": target}
    return json.dumps({"format": _FORMAT, "version": _VERSION, **about, "modules": modules}).encode()
