"""The summary of what was measured, as a page of Markdown, and a line about each cell as it comes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.accelerator import goals
from benchmarks.accelerator.cells import (
    COMPARISON,
    GROUPS,
    JAX_PRIVACY,
    KERNELS,
    NOISE,
    OURS,
    PARITY,
    PEAKS,
    PLAIN,
    PRIVATE_STEPS,
    PROFILED,
    RECURRENCE,
    ROUNDS,
    SHARES,
    TRAINING_STEPS,
)
from benchmarks.accelerator.records import FILE, Results, read
from fedlm.fl_core.atomic_files import write_atomically

SUMMARY = "summary.md"
REHEARSAL = (
    "THIS IS A REHEARSAL ON A CPU WITH TINY SIZES. Its numbers say that everything ran, and nothing of how fast "
    "anything is."
)


def write_report(folder: Path, say: Callable[[str], None]) -> bool:
    """Write summary and pictures of a folder's results, and say how the goals stand; False where it has none."""
    results = write_summary(folder)
    if results is None:
        say(f"{folder / FILE} has no results; run python -m benchmarks.accelerator first")
        return False
    for line in _goal_lines(results):
        say(line)
    try:
        from benchmarks.accelerator.plots import draw
    except ModuleNotFoundError as error:
        say(f"no pictures: the package {error.name} is missing; --report makes them where it is installed")
    else:
        for name, figure in draw(results).items():
            beside = folder / f"{name}.partial.png"
            figure.savefig(beside, dpi=110)
            beside.replace(folder / f"{name}.png")
    say(f"{folder / SUMMARY}")
    return True


def write_summary(folder: Path) -> Results | None:
    """Write the summary alone; gives what it was made of, None where there is nothing."""
    results = read(folder)
    if results is not None:
        write_atomically(folder / SUMMARY, summary(results))
    return results


def describe_found(found: dict[str, Any], rehearsal: bool) -> str:
    """Say in a line what a run found."""
    memory = found["memory"].get("bytes_limit")
    parts = [
        f"{found['device_count']} x {found['device']}",
        f"{memory / 2**30:.0f} GiB for JAX" if memory else "memory unknown",
        *([found["driver"]] if found["driver"] else []),
        f"JAX {found['jax']}, Python {found['python']}",
        f"{found['cores']} cores of {found['processor']}",
    ]
    return "; ".join(parts) + (f". {REHEARSAL}" if rehearsal else "")


def in_words(group: str, answer: dict[str, Any]) -> str:
    """Say in a line what became of a cell."""
    if answer["status"] != "measured":
        return f"{answer['status'].replace('_', ' ')}: {answer['reason']}"
    return f"{_WORDS[group](answer['result'])} ({answer['seconds']:.0f} s)" if group in _WORDS else "measured"


def summary(results: Results) -> str:
    """Write the page."""
    run = results.run
    lines = ["# Measured on an accelerator" if not run["rehearsal"] else "# A rehearsal on a CPU", ""]
    if run["rehearsal"]:
        lines += [f"**{REHEARSAL}**", ""]
    lines += [f"{run['started']}: {describe_found(run['found'], False)}.", "", "## Goals", ""]
    lines += _table(["goal", "measured", "met"], [[*goal[:2], _met(goal, run)] for goal in goals.goals(results)])
    for title, rows in (
        ("Peaks of the device", _peaks(results)),
        ("Rounds", _rounds(results)),
        ("Where a round's time goes", _shares(results)),
        ("Private steps", _private(results)),
        ("Kernels of a step, the longest first", _kernels(results)),
        ("Whole steps of central training", _training(results)),
        ("Parity with the CPU", _parity(results)),
        ("Noise", _noise(results)),
        ("Recurrence", _recurrence(results)),
        ("The small comparison", _comparison(results)),
        ("Not measured", _missing(results)),
    ):
        if len(rows) > 1:
            lines += ["", f"## {title}", "", *_table(rows[0], rows[1:])]
    return "\n".join(lines) + "\n"


def _goal_lines(results: Results) -> list[str]:
    of = goals.goals(results)
    return [f"{_met(goal, results.run):>12}  {goal.goal}: {goal.measured or 'nothing'}" for goal in of]


def _met(goal: goals.Goal, run: dict[str, Any]) -> str:
    if goal.met is None:
        return "not measured"
    return "rehearsed" if run["rehearsal"] else "met" if goal.met else "not met"


def _table(heads: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]


def _peaks(results: Results) -> list[list[str]]:
    rows, peaks = [["what", "measured"]], results.measured(PEAKS)
    if "products" in peaks:
        rows += [
            [f"matrix products, {policy}", f"{rate / 1e12:.4g} TFLOP/s"]
            for policy, rate in peaks["products"]["flops_per_second"].items()
        ]
    if "memory" in peaks:
        memory = peaks["memory"]
        names = ("bytes_per_second", "from_host_bytes_per_second", "to_host_bytes_per_second")
        heads = ("device memory, read and written", "from the host", "to the host")
        rows += [[head, f"{memory[name] / 1e9:.4g} GB/s"] for head, name in zip(heads, names, strict=True)]
        rows.append(["a call that is waited for", f"{1e6 * memory['seconds_of_a_call_that_is_waited_for']:.0f} us"])
        rows.append(["a call in a queue", f"{1e6 * memory['seconds_of_a_queued_call']:.1f} us"])
    return rows


def _rounds(results: Results) -> list[list[str]]:
    rows = [
        ["round", "lanes", "clients/s", "steps/s", "over the bare loop", "of the roofline", "first round, s", "GiB"]
    ]
    for name, one in results.measured(ROUNDS).items():
        part = goals.part_of_roofline(results, one, name.split(", ")[1])
        over = one["steps_per_second"] / one["bare_steps_per_second"]
        rates = [f"{one['clients_per_second']:.4g}", f"{one['steps_per_second']:.4g}", f"{over:.2f}"]
        rows.append([name, str(one["lanes"]), *rates, _percent(part), f"{one['seconds_of_first_round']}", _peak(one)])
    return rows


def _shares(results: Results) -> list[list[str]]:
    measured, profiles = goals.shares_of_rounds(results), results.measured(SHARES)
    parts = list(next(iter(measured.values()))) if measured else []
    rows = [["round", *parts, "the device idles", "its longest operations"]]
    for name, shares in measured.items():
        profile = profiles.get(f"{name}, {PROFILED}", {"reason": "no profile"})
        idle = _percent(profile["idle"]) if "idle" in profile else profile["reason"]
        longest = ", ".join(f"{what} {part:.0%}" for what, part in _longest(profile, 4))
        rows.append([name, *(f"{shares[part]:.1%}" for part in parts), idle, longest])
    return rows


def _longest(profile: dict[str, Any], most: int) -> list[tuple[str, float]]:
    return [(one["operation"] or one["kernel"], one["share"]) for one in profile.get("longest", [])[:most]]


def _kernels(results: Results) -> list[list[str]]:
    rows = [["step", "idle", "by part", "its longest operations"]]
    for name, one in results.measured(KERNELS).items():
        if "idle" not in one:
            rows.append([name, "", "", one["reason"]])
            continue
        parts = ", ".join(f"{part.replace('_', ' ')} {share:.0%}" for part, share in one["parts"].items())
        longest = ", ".join(f"{what} {share:.0%}" for what, share in _longest(one, 8))
        rows.append([name, _percent(one["idle"]), parts, longest])
    return rows


def _private(results: Results) -> list[list[str]]:
    rows = [["batch", "step", "at a time", "tokens/s", "over plain", "over jax-privacy", "MFU", "planned GiB"]]
    for name, case in goals.private_cases(results).items():
        for kind in (PLAIN, *OURS, JAX_PRIVACY):
            if kind in case:
                one = case[kind]
                over = [f"{goals.seconds(one) / goals.seconds(case[to]):.2f}" if to in case else ""
                        for to in (PLAIN, JAX_PRIVACY)]  # fmt: skip
                mfu = _percent(goals.utilization(results, name, one))
                memory = f"{one['planned_bytes'] / 2**30:.2f}"
                rows.append([name, kind, str(one["microbatch"]), f"{one['tokens_per_second']:.4g}", *over, mfu, memory])
    return rows


def _training(results: Results) -> list[list[str]]:
    rows, measured = (
        [["batch", "at a time", "tokens/s", "over plain", "MFU", "planned GiB"]],
        results.measured(TRAINING_STEPS),
    )
    for name, one in measured.items():
        plain = measured.get(f"{name.rpartition(', ')[0]}, {PLAIN}")
        over = f"{goals.seconds(one) / goals.seconds(plain):.2f}" if plain else ""
        mfu, memory = _percent(goals.utilization(results, name, one)), f"{one['planned_bytes'] / 2**30:.2f}"
        rows.append([name, str(one["microbatch"]), f"{one['tokens_per_second']:.4g}", over, mfu, memory])
    return rows


def _parity(results: Results) -> list[list[str]]:
    rows = [["model", "precision", "computation", "relative difference", "bound"]]
    for name, one in results.measured(PARITY).items():
        if "differences" not in one:
            rows.append([name, "float32", "a draw", f"{one['difference']:.1e}", f"{one['bound']:.1e}"])
            continue
        for policy, of in one["differences"].items():
            for computation, value in of.items():
                words = [name, policy, computation.replace("_", " "), f"{value:.1e}"]
                rows.append([*words, f"{one['bounds'][policy]:.1e}"])
    return rows


def _noise(results: Results) -> list[list[str]]:
    rows, measured = [["noise", "ms a round", "plain draws", "kept, GiB"]], results.measured(NOISE)
    for name, one in measured.items():
        plain = measured.get(f"plain draw, {name.split(', ', 1)[1]}")
        draws = f"{one['seconds_a_round'] / plain['seconds_a_round']:.2f}" if plain else ""
        rows.append([name, f"{1e3 * one['seconds_a_round']:.4g}", draws, f"{one['state_bytes'] / 2**30:.2f}"])
    return rows


def _recurrence(results: Results) -> list[list[str]]:
    rows = [
        ["recurrence", "ms a local step", "part of the layer", "us a time step", "its roofline, us", "to compile, s"]
    ]
    peaks = results.measured(PEAKS)
    for name, one in results.measured(RECURRENCE).items():
        least = ""
        if {"products", "memory"} <= peaks.keys():
            rate, bandwidth = (
                peaks["products"]["flops_per_second"][name.split(", ")[1]],
                peaks["memory"]["bytes_per_second"],
            )
            total = one["lanes"] * goals.roofline_seconds(one["products_of_layer"], rate, bandwidth)
            least = f"{1e6 * total / (2 * one['length']):.4g}"
        step, layer = f"{1e3 * goals.seconds(one):.4g}", f"{one['part_of_layer']:.0%}"
        rows.append(
            [name, step, layer, f"{1e6 * one['seconds_a_time_step']:.4g}", least, f"{one['seconds_of_first_step']}"]
        )
    return rows


def _comparison(results: Results) -> list[list[str]]:
    rows = [["comparison", "cells", "rounds each", "seconds", "to import the text", "to write the report"]]
    for name, one in results.measured(COMPARISON).items():
        report = "no package" if one["seconds_to_report"] is None else f"{one['seconds_to_report']:.0f}"
        numbers = [f"{one['cells']}", f"{one['rounds']}", f"{one['seconds']:.0f}", f"{one['seconds_to_import']:.0f}"]
        rows.append([name, *numbers, report])
    return rows


def _missing(results: Results) -> list[list[str]]:
    rows = [["cell", "what became of it", "why"]]
    for group in GROUPS:
        for (of, name), cell in results.cells.items():
            if of == group and cell["status"] != "measured":
                rows.append([f"{group}: {name}", cell["status"].replace("_", " "), cell["reason"].replace("|", "/")])
    return rows


def _percent(part: float | None) -> str:
    return "" if part is None else f"{part:.1%}"


def _peak(one: dict[str, Any]) -> str:
    peak = one["memory"].get("peak_bytes_in_use")
    return "" if peak is None else f"{peak / 2**30:.1f}"


def _shares_words(one: dict[str, Any]) -> str:
    if "shares" in one:
        return ", ".join(f"{part} {share:.1%}" for part, share in one["shares"].items())
    return _idle_words(one)


def _idle_words(one: dict[str, Any]) -> str:
    return f"the device idles {one['idle']:.1%}" if "idle" in one else one["reason"]


def _parity_words(one: dict[str, Any]) -> str:
    outside = goals.outside_bounds(one)
    return f"OUTSIDE ITS BOUND in {', '.join(outside)}" if outside else "within its bounds"


_WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    ROUNDS: lambda one: f"{one['clients_per_second']:.4g} clients/s, {one['steps_per_second']:.4g} steps/s",
    SHARES: _shares_words,
    PRIVATE_STEPS: lambda one: f"{one['tokens_per_second']:.4g} tokens/s, {one['microbatch']} at a time",
    TRAINING_STEPS: lambda one: f"{one['tokens_per_second']:.4g} tokens/s, {one['microbatch']} at a time",
    KERNELS: _idle_words,
    NOISE: lambda one: f"{1e3 * one['seconds_a_round']:.4g} ms a round",
    RECURRENCE: lambda one: f"{1e3 * goals.seconds(one):.4g} ms a step, the layer {one['part_of_layer']:.0%} of it",
    PARITY: _parity_words,
    COMPARISON: lambda one: f"{one['cells']} cells in {one['seconds']:.0f} s",
}
