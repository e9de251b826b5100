"""Writes how far the peers' rounds come apart from ours: results/parity.json, and the table results/parity.md.

Needs the environments of `make reference` and `make bench-peers`. Peers that are not named keep what was found before.

Usage: python -m benchmarks.interop.parity [fedjax] [kinks]
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.interop.comparisons import MODELS, compare_with_fedjax, describe
from benchmarks.interop.kinks import count_kinks
from benchmarks.interop.task import Setting
from benchmarks.machine import describe_machine
from fedlm.fl_core.atomic_files import write_atomically

RESULTS = Path(__file__).parent / "results"


def fedjax() -> list[dict[str, Any]]:
    return [describe(_in_folder(compare_with_fedjax, Setting(model, rounds=5)).comparison) for model in MODELS]


def kinks() -> list[dict[str, Any]]:
    return [count_kinks(model)._asdict() for model in MODELS]


PARTS: dict[str, Callable[[], list[dict[str, Any]]]] = {"fedjax": fedjax, "kinks": kinks}


def main(*names: str) -> None:
    path = RESULTS / "parity.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name in names or PARTS:
        found[name] = {"machine": describe_machine(), "found": PARTS[name]()}
        print(json.dumps(found[name]["found"], indent=1))
        write_atomically(path, json.dumps(found, indent=1, sort_keys=True) + "\n")
        write_atomically(RESULTS / "parity.md", table(found))


def table(found: dict[str, Any]) -> str:
    """Make the table of all that was compared."""
    lines = ["| peer | what | model | moved in a round | difference after one round | after all | rounds |"]
    lines.append("|---|---|---|---|---|---|---|")
    rows = [row for name in PARTS if name != "kinks" for row in found.get(name, {"found": []})["found"]]
    for row in rows:
        versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        numbers = (
            f"{row['moved']:.1e} | {row['differences'][0]:.1e} | {row['greatest']:.1e} | {len(row['differences'])}"
        )
        lines.append(f"| {row['peer']} ({versions}) | {row['what']} | {row['model']} | {numbers} |")
    if "kinks" in found:
        lines += ["", "| model | batches | gradient jumps in | greatest jump | greatest move elsewhere |"]
        lines.append("|---|---|---|---|---|")
        for row in found["kinks"]["found"]:
            numbers = f"{row['batches']} | {row['jumps']} | {row['greatest_jump']:.1e} | {row['greatest_other']:.1e}"
            lines.append(f"| {row['model']} | {numbers} |")
    return "\n".join(lines) + "\n"


def _in_folder(compare: Callable[[Setting, Path], Any], setting: Setting) -> Any:
    with tempfile.TemporaryDirectory(prefix="fedlm-parity-") as folder:
        return compare(setting, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
