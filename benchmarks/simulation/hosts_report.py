"""What `hosts` measured, as predictions, a table and a plot."""

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.simulation.against_peers import make_task
from benchmarks.simulation.hosts_prediction import (
    Constants,
    Exchange,
    Training,
    efficiency,
    exchange_seconds,
    fit_constants,
)
from benchmarks.simulation.namespaces import Link

HOSTS = (1, 2, 4, 10, 30, 100, 300, 1000)
CLIENTS_A_HOST, WHOLE_COHORT = 10, 2000
FAST = 16
"""Times as fast as one core here a host trains, in the second line of each model."""
POPULATION = 2000
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
Points = dict[str, dict[str, Any]]


def exchanges_of(point: dict[str, Any], links: Sequence[Link], cores: int) -> list[Exchange]:
    """Give the exchanges of a point, one a link."""
    share = max(1.0, point["processes"] / cores)
    return [Exchange(point["processes"], 4 * point["parameters"], link, share) for link in links]


def measured_seconds(point: dict[str, Any], link: Link) -> float:
    """Give the median of the seconds of a point's exchanges on a link."""
    return statistics.median(point["links"][link.name]["together"]["exchange_seconds"])


def is_fitted(point: dict[str, Any]) -> bool:
    """Say whether the constants are fitted to a point; what they say of the others is a prediction."""
    return point["devices"] == 1 and (point["processes"] == 2 or point["model"] == "cifg_tiny")


def predict(points: Points, links: Sequence[Link], cores: int) -> dict[str, Any]:
    """Fit the constants, and say for each point what they make of it.

    Args:
      points: by name, of `hosts.measure`.
      links: on which they were measured.
      cores: of the machine.
    """
    fitted = [point for point in points.values() if is_fitted(point)]
    if not fitted:
        return {}
    constants = fit_constants(
        [exchange for point in fitted for exchange in exchanges_of(point, links, cores)],
        [measured_seconds(point, link) for point in fitted for link in links],
    )
    rows = []
    for name, point in points.items():
        for exchange in exchanges_of(point, links, cores):
            measured, expected = measured_seconds(point, exchange.link), exchange_seconds(exchange, constants)
            together = point["links"][exchange.link.name]["together"]
            whole = statistics.median(together["seconds"])
            rows.append(
                {
                    "point": name,
                    "link": exchange.link.name,
                    "fitted": is_fitted(point),
                    "exchange_seconds": round(measured, 4),
                    "predicted": round(expected, 4),
                    "error": round(expected / measured - 1, 3),
                    "error_of_the_round": round((expected - measured) / whole, 3),
                }
            )
    return {"constants": constants._asdict(), "rows": rows, "on_paper": on_paper(points, constants, links)}


def on_paper(points: Points, constants: Constants, links: Sequence[Link]) -> list[dict[str, Any]]:
    """Predict the efficiency of up to 1,000 hosts, of one lane as fast as one core here, or so many times as fast.

    Returns:
      A line of points for each model of which two processes were measured, each link that has a rate, and both speeds:
      `growing`, with as many clients a host, and `fixed`, with as many clients in the cohort.
    """
    lines = []
    for point in points.values():
        if point["model"] == "cifg_tiny" or point["processes"] != 2 or point["devices"] != 1:
            continue
        # Of processes that train alone, so that nothing of the exchange is in it.
        step = point["alone"]["training_seconds"] / max(point["alone"]["steps"])
        steps = np.array([-(-len(client) // 10) for client in make_task("cifg_tiny", POPULATION).clients])
        for link in (links[1], links[2]):
            for speed in (1, FAST):
                lines.append(
                    {
                        "model": point["model"],
                        "link": link.name,
                        "times_as_fast": speed,
                        "step_seconds": round(step / speed, 6),
                        "hosts": list(HOSTS),
                        **{
                            name: [
                                round(
                                    efficiency(
                                        Exchange(hosts, 4 * point["parameters"], link),
                                        Training(steps, step / speed),
                                        WHOLE_COHORT if name == "fixed" else CLIENTS_A_HOST * hosts,
                                        constants,
                                    ),
                                    3,
                                )
                                for hosts in HOSTS
                            ]
                            for name in ("growing", "fixed")
                        },
                    }
                )
    return lines


def table(results: dict[str, Any]) -> str:
    """Lay out the points as rows of a table in Markdown."""
    rows = [
        "| model, processes | link | MB sent, expected | private | training s | exchange s | predicted | private s "
        "| waiting | efficiency |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    predicted = {(row["point"], row["link"]): row for row in results.get("predictions", {}).get("rows", [])}
    for name, point in results["points"].items():
        for link, measured in point["links"].items():
            together, private = measured["together"], measured.get("private")
            row = predicted[name, link]
            rows.append(
                f"| {name} | {link} | {max(together['sent_megabytes']):.2f}, {together['expected_megabytes']:.2f} "
                f"| {'' if private is None else format(max(private['sent_megabytes']), '.2f')} "
                f"| {together['training_seconds']:.2f} | {row['exchange_seconds']:.3f} | {row['predicted']:.3f} "
                f"| {'' if private is None else format(statistics.median(private['exchange_seconds']), '.3f')} "
                f"| {together['waiting_share']:.0%} | {measured['efficiency']:.2f} |"
            )
    return "\n".join(rows)


def plot(results: dict[str, Any], links: Sequence[Link]) -> Figure:
    """Draw measured against predicted exchanges, and the efficiency of many hosts on paper."""
    figure = Figure(figsize=(14, 4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    _draw_predictions(left, results["predictions"]["rows"], links)
    for axes, name, title in (
        (middle, "growing", f"on paper: {CLIENTS_A_HOST} clients a host"),
        (right, "fixed", f"on paper: a cohort of {WHOLE_COHORT:,} clients"),
    ):
        _draw_lines(axes, results["predictions"]["on_paper"], name)
        axes.set_title(title, fontsize=10)
    if results["predictions"]["on_paper"]:
        figure.legend(*right.get_legend_handles_labels(), fontsize=7, frameon=False, loc="outside right upper")
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_predictions(axes: Axes, rows: list[dict[str, Any]], links: Sequence[Link]) -> None:
    for colour, link in zip(COLOURS, links, strict=True):
        for fitted, marker in ((True, "o"), (False, "^")):
            chosen = [row for row in rows if row["link"] == link.name and row["fitted"] == fitted]
            axes.scatter(
                [row["exchange_seconds"] for row in chosen],
                [row["predicted"] for row in chosen],
                color=colour,
                marker=marker,
                facecolor=colour if fitted else "none",
                label=link.name if fitted else None,
            )
    ends = [0.8 * min(row["exchange_seconds"] for row in rows), 1.25 * max(row["exchange_seconds"] for row in rows)]
    axes.plot(ends, ends, color="#999999", zorder=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("seconds of an exchange, measured")
    axes.set_ylabel("predicted")
    axes.set_title("filled: fitted; hollow: predicted", fontsize=10)
    axes.legend(fontsize=7, frameon=False)


def _draw_lines(axes: Axes, lines: list[dict[str, Any]], name: str) -> None:
    models, links = ([*dict.fromkeys(line[key] for line in lines)] for key in ("model", "link"))
    for line in lines:
        fast = line["times_as_fast"]
        axes.plot(
            line["hosts"],
            line[name],
            color=COLOURS[2 * models.index(line["model"]) + links.index(line["link"])],
            linestyle="-" if fast == 1 else ":",
            label=f"{line['model']}, {line['link']}" + (f", hosts {fast} x as fast" if fast > 1 else ""),
        )
    axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("hosts")
    axes.set_ylabel("part of the hosts' time that trains")
