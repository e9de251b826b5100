"""Writes how far the peers' rounds come apart from ours: results/parity.json, and the table results/parity.md.

Needs the environments of `make reference` and `make bench-peers`. Peers that are not named keep what was found before.

Usage: python -m benchmarks.interop.parity [fedjax] [tff] [flower] [pfl] [kinks] [ourselves]
"""

import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.interop.comparisons import (
    FLOWER_STRATEGIES,
    MODELS,
    compare_with_fedjax,
    compare_with_flower,
    compare_with_pfl,
    compare_with_tff,
    describe,
    flower_setting,
    tff_setting,
)
from benchmarks.interop.kinks import count_kinks, part_by_rounding
from benchmarks.interop.task import Setting
from benchmarks.machine import describe_machine
from fedlm.fl_core.atomic_files import write_atomically

RESULTS = Path(__file__).parent / "results"
_DRAWS = 10
_SIZES = (2.0**-24, 5e-7)  # half the last place of a float32, and four to eight of them
_PEERS = ("fedjax", "tff", "flower", "pfl")


def fedjax() -> list[dict[str, Any]]:
    return [describe(_in_folder(compare_with_fedjax, Setting(model, rounds=5)).comparison) for model in MODELS]


def tff() -> list[dict[str, Any]]:
    wanted = [("mean", model) for model in MODELS[:3]] + [("clipped", "cifg_tiny"), ("tree", "cifg_tiny")]
    return [
        describe(_in_folder(partial(compare_with_tff, kind), tff_setting(kind, model, rounds=3)).comparison)
        for kind, model in wanted
    ]


def flower() -> list[dict[str, Any]]:
    return [
        describe(_in_folder(partial(compare_with_flower, strategy), flower_setting(strategy, "cifg_tiny", rounds=5))[0])
        for strategy in FLOWER_STRATEGIES
    ]


def pfl() -> list[dict[str, Any]]:
    found = [_in_folder(compare_with_pfl, Setting(model, rounds=3)) for model in MODELS[:3]]
    return [
        describe(comparison._replace(what=f"{comparison.what}; first logits differ by {apart:.1e}"))
        for comparison, apart in found
    ]


def kinks() -> list[dict[str, Any]]:
    return [count_kinks(model)._asdict() for model in MODELS]


def ourselves() -> list[dict[str, Any]]:
    return [part_by_rounding(Setting(model), size, _DRAWS)._asdict() for size in _SIZES for model in MODELS]


PARTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "fedjax": fedjax,
    "tff": tff,
    "flower": flower,
    "pfl": pfl,
    "kinks": kinks,
    "ourselves": ourselves,
}


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
    rows = [row for name in _PEERS for row in found.get(name, {"found": []})["found"]]
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
    if "ourselves" in found:
        lines += [
            "",
            "| model | first parameters moved by | draws | after one round: median, greatest | after all | rounds |",
            "|---|---|---|---|---|---|",
        ]
        for row in found["ourselves"]["found"]:
            (one, one_most), (last, last_most) = row["after_one"], row["after_all"]
            tried = f"{row['model']} | {row['size']:.0e} | {row['draws']}"
            lines.append(f"| {tried} | {one:.1e}, {one_most:.1e} | {last:.1e}, {last_most:.1e} | {row['rounds']} |")
    return "\n".join(lines) + "\n"


def _in_folder(compare: Callable[[Setting, Path], Any], setting: Setting) -> Any:
    with tempfile.TemporaryDirectory(prefix="fedlm-parity-") as folder:
        return compare(setting, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
