"""A secure round of `fedlm serve` with the virtual clients of `fedlm fleet`, over TLS on loopback.

Each of the two is a process. Each client has a certificate, connections and keys of its own, takes a local step, masks
its update, and signs and reveals. Measured are the seconds from the start to the fleet's end, and of each process the
CPU seconds and the largest resident set, compilers and libraries included. `load` is the machine's average of a quarter
of an hour at the end, these two processes included: far above the cores, seconds tell of other work.

    python -m benchmarks.deployment.virtual_clients --data runs/stdlib
    python -m benchmarks.deployment.virtual_clients --data runs/stdlib --clients 100 --dropout 0.05 --step-seconds 60

`fedlm data import stdlib --out runs/stdlib` makes the data. A device verifies the signatures of all members; the
virtual clients of one process verify each once together.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.runs.files.metrics_log import read_rows

RESULTS = Path(__file__).parent / "results"
LOOPBACK = "127.0.0.1"
PERFECT = "--availability 1 --diurnal 0 --link-bytes inf --speeds 1e9 1e9 1e9 --stay-seconds 1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of a data set")
    parser.add_argument("--clients", type=int, default=1000, help="of the cohort")
    parser.add_argument("--model", default="cifg_1m", help="name of a model")
    parser.add_argument("--dropout", type=float, default=0.0, help="share of the clients that go away")
    parser.add_argument("--step-seconds", type=float, default=3600.0, help="for which a step waits for those")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers go")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(arguments, Path(folder))
    print(json.dumps(found, indent=1))
    arguments.results.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": describe_machine(), **found}, indent=1)
    write_atomically(arguments.results / "virtual_clients.json", text + "\n")


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run a round, and say what it took; raises SystemExit where it does not come about."""
    keys, out = folder / "keys", folder / "run"
    Authority.create(keys).make_server([LOOPBACK])
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        address = f"{LOOPBACK}:{free.getsockname()[1]}"
    clients, step = arguments.clients, arguments.step_seconds
    serve = f"serve --rounds 1 --cohort-size {clients} --minimum-reports {clients * 3 // 4} --over-selection 1"
    serve += " --aggregation secure --update-clip-norm 0.5 --upload-bits 32 --client-max-batches 1 --check-in-seconds 2"
    serve += f" --selection-seconds 3600 --reporting-seconds {step} --linger-seconds 10 --model {arguments.model}"
    fleet = f"fleet --secure-sums --clients {clients} --dropout {arguments.dropout} --json {PERFECT}"
    both = [
        _begin(*serve.split(), "--vocabulary", arguments.data, "--out", out, "--keys", keys, "--address", address),
        _begin(*fleet.split(), "--data", arguments.data, "--keys", keys, "--server", address),
    ]
    started = time.monotonic()
    try:
        of_fleet = _used(both[1])
        seconds = time.monotonic() - started
        of_server = _used(both[0])
    finally:
        for process in both:
            process.kill()
    (row,) = read_rows(out / "metrics.jsonl")
    run = json.loads((out / "summary.json").read_text())
    sizes = {"clients": clients, "parameters": run["parameters"], "dropout": arguments.dropout}
    sizes["load"] = round(os.getloadavg()[2], 1)
    return sizes | {"survivors": row["clients"], "seconds": round(seconds, 1), "server": of_server, "fleet": of_fleet}


def _begin(*words: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "fedlm", *map(str, words)], stdout=subprocess.DEVNULL)


def _used(process: subprocess.Popen[bytes]) -> dict[str, float]:
    """Wait for a process, and say what it used."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"a command ended with {process.returncode}: {process.args!r}")
    return {"cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1), "peak_mib": round(usage.ru_maxrss / 1024, 1)}


if __name__ == "__main__":
    main()
