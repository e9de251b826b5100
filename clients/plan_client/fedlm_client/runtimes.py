"""Which runtimes a device has, and how a plan is made ready for one."""

import hashlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

from fedlm_client import messages_pb2 as messages
from fedlm_client.confined import Confined, Trainer, compile_plan
from fedlm_client.errors import ClientError, PlanError
from fedlm_client.manifest import Manifest

RUNTIMES = ("jax", "iree")
_DESCRIBE_SECONDS, _DESCRIBE_MEMORY = 120.0, 2 << 30
# Newest versions of StableHLO that IREE's compilers are known to read; the oldest that servers write for others.
_READ_BY_IREE = {"3.13": "1.15.0"}
HOST = ("--iree-llvmcpu-target-cpu=host",)


def installed(name: str) -> str:
    """Choose a runtime.

    Args:
      name: `jax`, `iree` or `auto`: IREE where it is there, JAX where not.

    Raises:
      ClientError: it is not installed.
    """
    there = {"jax": _has("jax"), "iree": _has("iree.runtime")}
    if name == "auto":
        name = "iree" if there["iree"] else "jax"
    if not there[name]:
        raise ClientError(f"the runtime {name} is not installed; `pip install fedlm-client[{name}]`")
    return name


def announced(name: str, target: str | None = None) -> "messages.Runtime":
    """Say what a server needs to know of an installed runtime, and of which target it takes the server's modules."""
    if name == "jax":
        with Confined(_DESCRIBE_MEMORY) as process:
            answer, _ = process.ask({"do": "describe"}, [], _DESCRIBE_SECONDS)
        return messages.Runtime(name=name, version=importlib.metadata.version("jax"), stablehlo=answer["stablehlo"])
    version = importlib.metadata.version("iree-base-runtime")
    stablehlo = _READ_BY_IREE.get(".".join(version.split(".")[:2]), "")
    return messages.Runtime(name=name, version=version, stablehlo=stablehlo, target=target or "")


def trainer(
    runtime: str, manifest: Manifest, described: bytes, contents: Sequence[bytes], modules: Path | None
) -> Trainer:
    """Make a plan ready to train.

    Args:
      runtime: `jax` or `iree`.
      manifest: as it was read and checked, with its limits.
      described: its bytes.
      contents: the programs step and finish.
      modules: folder of compiled modules, which is kept full; see `module_path`.
    """
    if runtime == "iree":
        contents = _modules(manifest, described, contents, modules)
    return Trainer(manifest, described, runtime, contents)


def has_modules(manifest: Manifest, folder: Path | None) -> bool:
    """Say whether a folder has the modules of a plan."""
    return folder is not None and all(path.exists() for path in _paths(manifest, folder))


def module_path(folder: Path, sha256: str) -> Path:
    """Name the file of the module that IREE of this version compiles of a program, for whichever processor."""
    version = importlib.metadata.version("iree-base-runtime" if _has("iree.runtime") else "iree-base-compiler")
    return folder / f"{hashlib.sha256(f'{sha256} {version}'.encode()).hexdigest()}.vmfb"


def write_modules(
    manifest: Manifest, described: bytes, contents: Sequence[bytes], folder: Path, flags: Sequence[str] = HOST
) -> list[Path]:
    """Compile a plan's programs into a folder of modules; raises ClientError where there is no compiler."""
    if not _has("iree.compiler"):
        raise ClientError("IREE's compiler is not installed; `pip install fedlm-client[compiler]`")
    paths = _paths(manifest, folder)
    made = compile_plan(manifest, described, contents, flags)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path, content in zip(paths, made, strict=True):
        beside = path.with_suffix(".new")
        beside.write_bytes(content)
        os.replace(beside, path)
    return paths


def _modules(manifest: Manifest, described: bytes, contents: Sequence[bytes], folder: Path | None) -> list[bytes]:
    """Find the modules of a plan that were compiled before, or compile them."""
    if folder is not None and has_modules(manifest, folder):
        return [path.read_bytes() for path in _paths(manifest, folder)]
    if not _has("iree.compiler"):
        raise PlanError(
            f"the plan {manifest.digest[:12]} is compiled on no machine yet: this one has IREE without its compiler. "
            "Compile it where `pip install fedlm-client[compiler]` was given (`fedlm-client compile`), and give the "
            "folder as --modules; or take what a server has compiled, by --accept-modules"
        )
    if folder is None:
        return list(compile_plan(manifest, described, contents, HOST))
    return [path.read_bytes() for path in write_modules(manifest, described, contents, folder)]


def _paths(manifest: Manifest, folder: Path) -> list[Path]:
    return [module_path(folder, one.sha256) for one in (manifest.step, manifest.finish)]


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
