"""The table and the plot of `against_peers`."""

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

LABELS = {
    "engine": "fedlm",
    "engine_8bit": "fedlm, 8-bit uploads",
    "bare_lanes": "bare loop, a lane a core",
    "bare_scan": "bare loop, one program",
    "fedjax": "FedJAX",
    "fedjax_own_lstm": "FedJAX, its own LSTM",
    "tff": "TensorFlow Federated",
    "pfl": "pfl-research",
    "flower": "Flower",
    "fedjax_jit": "FedJAX, jit",
    "tff_call_a_core": "TFF, a call a core",
    "pfl_threads": "pfl-research, threads",
    "pfl_one_thread": "pfl-research, one thread",
    "flower_threads": "Flower, one actor",
}
OURS, BARE, PEERS = "#0072b2", "#b0b0b0", "#e69f00"
COLUMNS = 3


def table(name: str, measured: dict[str, Any]) -> Table:
    """Lay a model's numbers out for the terminal."""
    contestants = measured["contestants"]
    steps = next(iter(contestants.values()))["steps"] if contestants else 0
    result = Table(title=f"{name}: {measured['clients']} clients, {steps} local steps")
    headings = ("steps/s", "clients/s", "fedlm: times as many", "CPU s", "first round", "peak MiB", "idle CPU", "loss")
    result.add_column("contestant", no_wrap=True)
    for heading in headings:
        result.add_column(heading, justify="right")
    for variant, numbers in contestants.items():
        result.add_row(LABELS.get(variant, variant), *_cells(numbers, measured["engine_over"].get(variant)))
    return result


def _cells(numbers: dict[str, Any], ratio: dict[str, float] | None) -> list[str]:
    first, loss = numbers["seconds_to_first_round"], numbers["loss_after"]
    return [
        f"{numbers['steps_per_second']:.1f}",
        f"{numbers['clients_per_second']:.1f}",
        "" if ratio is None else f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})",
        f"{numbers['cpu_seconds']:.1f}",
        "" if first is None else f"{first:.1f} s",
        f"{numbers['peak_memory_mib']}",
        f"{numbers['idle_cpu_percent']:.1f} %",
        "" if loss is None else f"{loss:.4f}",
    ]


def plot(models: dict[str, Any]) -> Figure:
    """Draw steps a second by contestant, one panel a model."""
    columns = min(COLUMNS, max(1, len(models)))
    rows = math.ceil(max(1, len(models)) / columns)
    present = {variant for measured in models.values() for variant in measured["contestants"]}
    variants = [variant for variant in LABELS if variant in present]
    height = 1.0 + 0.36 * len(variants)
    figure = Figure(figsize=(2.4 + 3.4 * columns, 0.5 + height * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for index, panel in enumerate(panels):
        panel.set_visible(index < len(models))
    for index, (name, measured) in enumerate(models.items()):
        _draw(panels[index], name, measured, variants, labelled=index % columns == 0)
    figure.suptitle("Local SGD steps per second in a simulated round: more is better", fontsize=11)
    return figure


def _draw(axes: Axes, name: str, measured: dict[str, Any], variants: list[str], labelled: bool) -> None:
    contestants = measured["contestants"]
    values = [contestants[variant]["steps_per_second"] if variant in contestants else 0.0 for variant in variants]
    bars = axes.barh(range(len(variants)), values, color=[_colour(variant) for variant in variants])
    labels = [(f"{value:.0f}" if value >= 20 else f"{value:.1f}") if value else "not run" for value in values]
    axes.bar_label(bars, labels, padding=3)
    axes.set_yticks(range(len(variants)), [LABELS[variant] for variant in variants] if labelled else [])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * max([*values, 1.0]))
    axes.set_xticks([])
    axes.set_title(f"{name}, {measured['clients']} clients", fontsize=10)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _colour(variant: str) -> str:
    return OURS if variant.startswith("engine") else BARE if variant.startswith("bare") else PEERS
