"""Runs programs in the environments of the peers."""

import json
import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "reference"
PEERS = ROOT / "benchmarks" / "simulation" / "peers"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}


class PeerError(Exception):
    """A program ended badly; the message has the end of what it wrote."""


def run_in_peer(
    home: Path, script: Path | str, *arguments: object, timeout: float = 300, cwd: Path | None = None
) -> str:
    """Run a script, which finds `benchmarks` too, and end whatever processes it leaves behind; see `run_as_installed`.

    Args:
      home: the folder in which the environment `.venv` is, `REFERENCE` or `PEERS`.
      script: its path.
      arguments: of the script.
      timeout: seconds.
      cwd: where it runs.

    Returns:
      What it wrote to standard output.
    """
    return _run(
        [home / ".venv" / "bin" / "python", script, *map(str, arguments)], {"PYTHONPATH": str(ROOT)}, timeout, cwd
    )


def run_as_installed(home: Path, script: Path, timeout: float, cwd: Path) -> str:
    """Run a script that finds what is installed in an environment, and nothing else; see `run_in_peer`."""
    return _run([home / ".venv" / "bin" / "python", script], {}, timeout, cwd)


def _run(words: list[Path | str], variables: dict[str, str], timeout: float, cwd: Path | None) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
    # Files, not pipes: TensorFlow Federated's worker_binary would hold a pipe open after its parent has ended.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
            cwd=cwd,
            env=environment | QUIET | variables,
        )
        try:
            status: int | str = process.wait(timeout)
        except subprocess.TimeoutExpired:
            status = f"timeout of {timeout} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        errors.seek(0)
        if status != 0:
            raise PeerError(f"{words[1]} ended with {status}:\n{errors.read().decode()[-4000:]}")
        return output.read().decode()


def run_in_reference(script: str, *arguments: object, timeout: float = 300, cwd: Path | None = None) -> Any:
    """Run a script of `reference/` there; returns what it prints, parsed as JSON."""
    return json.loads(run_in_peer(REFERENCE, REFERENCE / script, *arguments, timeout=timeout, cwd=cwd))
