"""A state of the code as a process that runs cases, several at once."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.golden.cases import Case

ROOT = Path(__file__).resolve().parents[2]
_ENVIRONMENT = {
    "GLIBC_TUNABLES": "",  # processes that share a machine give back what they free
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # with XLA_FLAGS below, compiling takes half the time
    "JAX_NUM_CPU_DEVICES": "2",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    "JAX_PLATFORMS": "cpu",
    "COLUMNS": "120",
    "PYTHONHASHSEED": "0",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false",
}


class CommitError(Exception):
    """There is no such state of the code."""


class SideError(Exception):
    """A side ended before its cases did."""


class Ended(NamedTuple):
    """A case that was run, and the seconds of processors that its commands took."""

    case: str
    seconds: dict[str, float]  # by the command's number


def write_tree(commit: str, folder: Path) -> str:
    """Write a commit's files into a folder. Returns the commit's full name."""
    try:
        name = _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}").decode().strip()
    except subprocess.CalledProcessError:
        raise CommitError(f"{commit!r} is no commit of {ROOT}; `git log --oneline` lists them") from None
    with tarfile.open(fileobj=io.BytesIO(_git("archive", name))) as archive:
        archive.extractall(folder, filter="tar")
    return name


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout


class Side:
    """A process that has imported a tree's fedlm, and runs cases below a folder."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self._tree, self._folder = tree, folder
        paths = [str(Path(__file__).with_name("started")), str(tree), *map(str, tree.glob("clients/*_client"))]
        cache = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(Path.home() / ".cache" / "fedlm" / "golden")
        environment = {**os.environ, **_ENVIRONMENT, "JAX_COMPILATION_CACHE_DIR": cache}
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("side.py")), str(tree)],
            env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, cases: Sequence[Case], ports: Mapping[str, tuple[int, int]], jobs: int) -> Iterator[Ended]:
        """Run cases, `jobs` at once, each after those that it needs, and tell of each as it ends."""
        assert self._process.stdin is not None
        self._answer()  # that all is imported
        waiting, ended, running = list(cases), set(), 0
        while waiting or running:
            while running < jobs and (case := next((case for case in waiting if ended.issuperset(case.needs)), None)):
                waiting.remove(case)
                (self._folder / case.name).mkdir()
                request = case.request(str(self._folder / case.name), ports.get(case.name, (0, 0)))
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
                running += 1
            answer = self._answer()
            running -= 1
            ended.add(answer["case"])
            yield Ended(answer["case"], answer["cpu"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SideError(f"the process with the code of {self._tree} ended; what it said is above")
        return json.loads(line)

    def stop(self) -> None:
        """End it, and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def free_ports(cases: Sequence[Case]) -> dict[str, tuple[int, int]]:
    """Find two ports of loopback for each case that needs some: the server's, and the relay's."""
    found = {}
    with contextlib.ExitStack() as stack:
        for case in cases:
            if case.uses("port"):
                both = [stack.enter_context(socket.socket()) for _ in range(2)]
                for listener in both:
                    listener.bind(("127.0.0.1", 0))
                found[case.name] = (both[0].getsockname()[1], both[1].getsockname()[1])
    return found
