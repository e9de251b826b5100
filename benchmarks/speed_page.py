"""Writes the tables of docs/speed.md anew, from what the commands of `make bench` measured.

    python -m benchmarks.speed_page

Each table stands between two comments of the page, which says of which commit and machine each is.
"""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.simulation.against_peers import COHORTS
from benchmarks.simulation.peers.jax_models import create
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.models.base import parameter_count

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/speed.md"
RESULTS = {
    "against_peers": ROOT / "benchmarks/simulation/results/against_peers.json",
    "scaling": ROOT / "benchmarks/simulation/results/scaling.json",
    "whole_runs": ROOT / "benchmarks/simulation/results/whole_runs.json",
    "profile_round": ROOT / "benchmarks/simulation/results/profile_round.json",
    "product_rates": ROOT / "benchmarks/simulation/results/product_rates.json",
    "noise_cost": ROOT / "benchmarks/privacy/results/noise_cost.json",
    "clipping": ROOT / "benchmarks/clipping/results/against_peers.json",
    "generation": ROOT / "benchmarks/generation/results/against_transformers.json",
}
_MARK = "<!-- {}: made of results by benchmarks/speed_page.py -->"
_END = "<!-- end -->"
_TITLES = {
    "against_peers": "rounds",
    "scaling": "devices and clients",
    "whole_runs": "first rounds and memory",
    "profile_round": "where time goes",
    "product_rates": "matrix products",
    "noise_cost": "noise",
    "clipping": "clipping",
    "generation": "generation",
}
_PEERS = {"pfl": "pfl-research", "flower": "Flower", "fedjax": "FedJAX", "tff": "TensorFlow Federated"}
_STEPS = {
    "plain": "fedlm, without privacy",
    "bookkeeping": "fedlm, bookkeeping",
    "ghost": "fedlm, ghost",
    "vmap": "fedlm, vmap",
    "jax_privacy": "jax-privacy",
    "torch_plain": "PyTorch, without privacy",
    "opacus_per_sample": "Opacus, per sample",
    "opacus_ghost": "Opacus, ghost (untied output)",
}
Row = Iterable[str]
Results = dict[str, Any]


def main() -> None:
    write_atomically(PAGE, with_tables(PAGE.read_text(encoding="utf-8"), read_results()))


def read_results() -> Results:
    """Read all results, by the names of their files."""
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in RESULTS.items()}


def with_tables(page: str, results: Results) -> str:
    """Put the tables that results make into a page."""
    for name, make in TABLES.items():
        mark = _MARK.format(name)
        parts = re.split(f"{re.escape(mark)}\n.*?{re.escape(_END)}", page, flags=re.DOTALL)
        if len(parts) != 2:
            raise ValueError(f"the page has {len(parts) - 1} places for {mark}, but must have one")
        page = f"{mark}\n\n{make(results)}\n\n{_END}".join(parts)
    return page


def _origins(results: Results) -> str:
    found: dict[tuple[str, ...], list[str]] = {}
    for name, one in results.items():
        machine = one["machine"]
        origin = (
            machine.get("commit", "not written down"),
            f"{machine['processor']}, {machine['cores']} cores",
            *(machine[name] for name in ("python", "jaxlib", "numpy")),
        )
        found.setdefault(origin, []).append(_TITLES[name])
    rows = [(", ".join(titles), *origin) for origin, titles in found.items()]
    return _table(("tables and plots", "commit", "machine", "Python", "jaxlib", "NumPy"), rows)


def _table(head: Row, rows: Iterable[Row]) -> str:
    def line(cells: Row) -> str:
        return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")

    head = list(head)
    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])


def _model(name: str, count: int) -> str:
    kind = name.split("_")[0]
    words = {"cifg": "CIFG", "lstm": "LSTM", "transformer": "Transformer"}
    return f"{words[kind]}, {count / 1e6:.2g} M"


def _rounds(results: Results) -> str:
    models = results["against_peers"]["models"]

    def row(name: str) -> Row:
        measured = models[name]
        over = measured["engine_over"]

        def times(whose: str) -> str:
            return f"{over[whose]['median']:.2f}" if whose in over else ""

        count = parameter_count(create(name, 4096))
        own = f" (its own LSTM: {times('fedjax_own_lstm')})" if "fedjax_own_lstm" in over else ""
        peers = [times(peer) + (own if peer == "fedjax" else "") for peer in _PEERS]
        steps = f"{measured['contestants']['engine']['steps_per_second']:.0f}"
        cost = f"{100 * (over['engine_8bit']['median'] - 1):.0f} %"
        return _model(name, count), str(measured["clients"]), steps, times("bare_lanes"), *peers, cost

    head = "model", "clients", "steps a second", "bare loop", *_PEERS.values(), "cost of 8-bit uploads"
    return _table(head, [row(name) for name in COHORTS if name in models])


def _whole_process(results: Results) -> str:
    models = results["against_peers"]["models"]
    names = {"engine": "fedlm", "bare_lanes": "bare loop", **_PEERS}

    def spread(whose: str, what: str, text: Callable[[float], str]) -> str:
        found = [one["contestants"].get(whose, {}).get(what) for name, one in models.items() if name.endswith("_1m")]
        found = [value for value in found if value is not None]
        if not found:
            return ""
        least, most = text(min(found)), text(max(found))
        return least if least == most else f"{least} to {most}"

    rows = [
        (
            label,
            spread(whose, "seconds_to_first_round", lambda s: f"{s:.0f} s"),
            spread(whose, "peak_memory_mib", lambda mib: f"{mib:.0f} MiB"),
        )
        for whose, label in names.items()
    ]
    return _table(("models of 1 M", "start and first round, nothing compiled before", "peak memory"), rows)


def _profile(results: Results) -> str:
    models = results["profile_round"]["models"]
    kinds = sorted({kind for one in models.values() for kind in one["milliseconds_by_kind"]})

    def part(one: dict, kind: str) -> str:
        share = 100 * one["milliseconds_by_kind"].get(kind, 0.0) / sum(one["milliseconds_by_kind"].values())
        return f"{share:.0f} %" if share >= 0.5 else ""

    rows = [(kind, *(part(one, kind) for one in models.values())) for kind in kinds]
    rows = [row for row in rows if any(row[1:])]
    steps = "milliseconds a step", *(f"{one['milliseconds_a_step']:.1f}" for one in models.values())
    rate = "part of a large product's rate", *(f"{one['part_of_matrix_product_rate']:.2f}" for one in models.values())
    head = "", *(_model(name, parameter_count(create(name, 4096))) for name in models)
    return _table(head, [*rows, steps, rate])


def _products(results: Results) -> str:
    rounds, rows = results["against_peers"]["models"], []
    for name, of in results["product_rates"]["models"].items():
        # Each of the cores takes steps of its own.
        step = (
            1e3
            * results["against_peers"]["machine"]["cores"]
            / rounds[name]["contestants"]["engine"]["steps_per_second"]
        )
        milliseconds = [f"{of['milliseconds'][side]:.1f}" for side in ("jax", "torch")]
        parts = [f"{of['part_of_large'][side]:.2f}" for side in ("jax", "torch")]
        rows.append((_model(name, parameter_count(create(name, 4096))), f"{step:.1f}", *milliseconds, *parts))
    head = (
        "milliseconds of a core",
        "a step",
        "its products in JAX",
        "in PyTorch",
        "part of a large product's rate",
        "in PyTorch",
    )
    return _table(head, rows)


def _first_rounds(results: Results) -> str:
    def text(spread: list[float]) -> str:
        return f"{spread[1]:.1f} ({spread[0]:.1f} to {spread[2]:.1f})"

    found = results["whole_runs"]["first_round"]
    rows = [(f"`{name}`", text(one["kept"]), text(one["empty"])) for name, one in found.items()]
    return _table(("seconds to the end of the first round", "programs are kept", "nothing is kept"), rows)


def _memory(results: Results) -> str:
    memory = results["whole_runs"]["memory"]
    return f"Over {memory['rounds']:,} rounds of a tiny model memory grows by {memory['growth_mib']:.0f} MiB."


def _noise(results: Results) -> str:
    found = results["noise_cost"]["noise"]
    names = [name for name in found[0]["draws_worth"] if name != "plain draw"]

    def row(one: dict) -> Row:
        seconds = f"{one['seconds_a_round']['plain draw']:.2g} s"
        return f"{one['parameters'] / 1e6:.0f} M", seconds, *(f"{one['draws_worth'][name]:.1f}" for name in names)

    return _table(("parameters", "plain draw", *names), map(row, found))


def _noise_state(results: Results) -> str:
    found = results["noise_cost"]["noise"]
    names = list(found[0]["state_mib"])
    rows = [(f"{one['parameters'] / 1e6:.0f} M", *(f"{one['state_mib'][name]:.0f}" for name in names)) for one in found]
    return _table(("MiB kept between rounds", *names), rows)


def _clipping(results: Results) -> str:
    cases = results["clipping"]["cases"]

    def cell(case: dict, kind: str) -> str:
        if kind not in case["best"]:
            return ""
        over = case["over_plain"].get(kind)
        milliseconds = f"{1e3 * case['best'][kind]['median']:.0f}"
        return milliseconds if over is None else f"{milliseconds} ({over['median']:.2f})"

    def memory(case: dict, kind: str) -> str:
        return f"{case['best'][kind]['memory_mib']:.0f}"

    rows: list[Row] = [(label, *(cell(case, kind) for case in cases)) for kind, label in _STEPS.items()]
    ours = "plain", "bookkeeping", "vmap"
    words = ", ".join(_STEPS[kind].removeprefix("fedlm, ") for kind in ours)
    rows.append((f"MiB: {words}", *(", ".join(memory(case, kind) for kind in ours) for case in cases)))
    return _table(("milliseconds", *(case["model"] for case in cases)), rows)


def _generation(results: Results) -> str:
    rows = []
    for name, one in results["generation"]["models"].items():
        for prompts, batch in one["batches"].items():
            speeds, best = batch["tokens_per_second"], batch["best_of_transformers"]
            ours, theirs = speeds["fedlm"]["median"], speeds[best]["median"]
            rows.append((name, prompts, f"{ours:.0f}", f"{theirs:.0f}", f"{batch['ratio']['median']:.1f}"))
    return _table(("model", "prompts at once", "fedlm", "transformers", "times as many"), rows)


TABLES: dict[str, Callable[[Results], str]] = {
    "origin": _origins,
    "rounds": _rounds,
    "processes": _whole_process,
    "profile": _profile,
    "products": _products,
    "first rounds": _first_rounds,
    "memory": _memory,
    "noise": _noise,
    "state of noise": _noise_state,
    "clipping": _clipping,
    "generation": _generation,
}

if __name__ == "__main__":
    main()
