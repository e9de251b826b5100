"""What makes scale-invariant models train: one choice varied at a time, in short simulated runs.

Every line of `QUESTIONS` is one run a seed. Finished runs are kept, so the command goes on where it was stopped, and
a new line costs only its own runs. Needs a data set (`fedlm data import stdlib --out runs/stdlib`); takes about a
minute a run and core:

    python -m benchmarks.architectures.choices
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.machine import describe_machine
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.composed_settings import compose
from fedlm.simulations.experiments.cell_execution import LocalProcesses, run_cells
from fedlm.simulations.experiments.comparison import Cell, CellResult, read_result
from fedlm.simulations.experiments.configuration import Experiment

RESULTS = Path(__file__).parent / "results"
VARIANTS = "benchmarks.architectures.variants:"
BASE: dict[str, Any] = {
    "rounds": 60,
    "cohort_size": 20,
    "client_learning_rate": 2.0,
    "server_learning_rate": 0.01,
    "client_gradient_clip": 1.0,
    "heldout_examples": 2000,
    "test_examples": 1,
    "evaluate_every": 2,
    "checkpoint_every": 60,
}
"""What all runs have in common but for what their line says: the setting of the preset `small`."""

Lines = dict[str, dict[str, Any]]
QUESTIONS: dict[str, Lines] = {
    "SI-CIFG before its output was normalised: the server's steps": {
        "CIFG": {"model": "cifg_tiny"},
        "SI-CIFG, not normalised": {"model": "si_cifg_published_tiny"},
        "rate 0.003": {"model": "si_cifg_published_tiny", "server_learning_rate": 0.003},
        "rate 0.001": {"model": "si_cifg_published_tiny", "server_learning_rate": 0.001},
        "warm-up 20": {"model": "si_cifg_published_tiny", "server_warmup_rounds": 20},
        "epsilon 1e-3": {"model": "si_cifg_published_tiny", "server_epsilon": 1e-3},
        "epsilon 1e-2, rate 0.03": {
            "model": "si_cifg_published_tiny",
            "server_epsilon": 1e-2,
            "server_learning_rate": 0.03,
        },
    },
    "SI-CIFG: scales and normalisation": {
        "CIFG": {"model": "cifg_tiny"},
        "not normalised": {"model": "si_cifg_published_tiny"},
        "not normalised, output / sqrt(e)": {"model": f"{VARIANTS}SMALL_OUTPUT"},
        "not normalised, output / e": {"model": f"{VARIANTS}SMALLER_OUTPUT"},
        "not normalised, gate weights x 10": {"model": f"{VARIANTS}LARGER_GATES"},
        "not normalised, embeddings / sqrt(e)": {"model": f"{VARIANTS}UNIT_EMBEDDING"},
        "output normalised": {"model": "si_cifg_unit_rms_tiny"},
        "h normalised at every step": {"model": f"{VARIANTS}NORMALISED_STATE"},
        "output normalised, embeddings / sqrt(e)": {"model": f"{VARIANTS}NORMALISED_UNIT_EMBEDDING"},
    },
    "CIFG and SI-CIFG: normalised output, rate, clipping": {
        "CIFG": {"model": "cifg_tiny"},
        "CIFG, output normalised": {"model": "cifg_unit_rms_tiny"},
        "CIFG, rate 0.03": {"model": "cifg_tiny", "server_learning_rate": 0.03},
        "CIFG, no clip": {"model": "cifg_tiny", "client_gradient_clip": None},
        "SI-CIFG (output normalised)": {"model": "si_cifg_unit_rms_tiny"},
        "SI-CIFG, rate 0.03": {"model": "si_cifg_unit_rms_tiny", "server_learning_rate": 0.03},
        "SI-CIFG, no clip": {"model": "si_cifg_unit_rms_tiny", "client_gradient_clip": None},
    },
    "Transformer and SI-Transformer: clipping, attention, rate": {
        "Transformer": {"model": "transformer_tiny"},
        "Transformer, no clip": {"model": "transformer_tiny", "client_gradient_clip": None},
        "Transformer, rate 0.03": {"model": "transformer_tiny", "server_learning_rate": 0.03},
        "SI-Transformer": {"model": "si_transformer_tiny"},
        "SI-Transformer, no clip": {"model": "si_transformer_tiny", "client_gradient_clip": None},
        "SI-Transformer, no clip, attention epsilon 1e-2": {
            "model": f"{VARIANTS}ATTENTION_EPSILON",
            "client_gradient_clip": None,
        },
        "SI-Transformer, attention epsilon 1e-2": {"model": f"{VARIANTS}ATTENTION_EPSILON"},
        "SI-Transformer, half on itself": {"model": f"{VARIANTS}ATTENTION_WITH_SELF"},
        "SI-Transformer, rate 0.03": {"model": "si_transformer_tiny", "server_learning_rate": 0.03},
    },
    "A learned gain on the normalised output": {
        "CIFG": {"model": "cifg_tiny"},
        "CIFG, output normalised": {"model": "cifg_unit_rms_tiny"},
        "CIFG, with gain": {"model": "cifg_rms_norm_tiny"},
        "SI-CIFG (output normalised)": {"model": "si_cifg_unit_rms_tiny"},
        "SI-CIFG, with gain": {"model": "si_cifg_tiny"},
        "Transformer": {"model": "transformer_tiny"},
        "Transformer, without gain": {"model": f"{VARIANTS}TRANSFORMER_WITHOUT_GAIN"},
        "SI-Transformer": {"model": "si_transformer_tiny"},
        "SI-Transformer, without gain": {"model": f"{VARIANTS}SI_TRANSFORMER_WITHOUT_GAIN"},
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("runs/stdlib"), help="data set")
    parser.add_argument("--out", type=Path, default=Path("runs/choices"), help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--questions", nargs="+", help="only questions whose title has one of these words")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where numbers and plots go")
    arguments = parser.parse_args()
    chosen = {
        title: lines
        for title, lines in QUESTIONS.items()
        if not arguments.questions or any(word in title for word in arguments.questions)
    }
    cells = {
        (title, label, seed): cell_of(settings, seed, arguments.data, arguments.out)
        for title, lines in chosen.items()
        for label, settings in lines.items()
        for seed in arguments.seeds
    }
    failures = run_cells(list(dict.fromkeys(cells.values())), LocalProcesses(), report_progress)
    found = {key: read_result(cell, failures.get(cell)) for key, cell in cells.items()}
    results = {title: summarise(lines, title, arguments.seeds, found) for title, lines in chosen.items()}
    arguments.results.mkdir(parents=True, exist_ok=True)
    record = {"machine": describe_machine(), "setting": BASE, "questions": results}
    write_atomically(arguments.results / "choices.json", json.dumps(record, indent=1) + "\n")
    plot(results).savefig(arguments.results / "choices.png", dpi=110)
    for title, lines in results.items():
        print(title)
        for label, line in lines.items():
            print(f"  {label:32s} {line['final_perplexity']}  largest {line['largest_perplexity']:.0f}")


def cell_of(settings: dict[str, Any], seed: int, data: Path, out: Path) -> Cell:
    """Name the run of a line's settings and a seed; equal settings share one folder, whatever they answer."""
    name = "_".join(f"{key}-{str(value).rpartition(':')[2]}" for key, value in sorted(settings.items()))
    return Cell(compose(Experiment, **{**BASE, **settings}, data=data, seed=seed), out / name / f"seed-{seed}")


def report_progress(cell: Cell, row: dict[str, Any]) -> None:
    """Print a line for the last round of every run."""
    if row["round"] + 1 == cell.experiment.rounds:
        print(f"{cell.directory}: {row.get('heldout_perplexity')}", flush=True)


def summarise(
    lines: Lines, title: str, seeds: list[int], found: dict[tuple[str, str, int], CellResult]
) -> dict[str, dict[str, Any]]:
    """Collect for each line of a question the status, last, mean and largest perplexity, and the mean curve."""
    summaries = {}
    for label, settings in lines.items():
        results = [found[title, label, seed] for seed in seeds]
        curves = [
            {row["round"] + 1: row["heldout_perplexity"] for row in result.rows if row.get("heldout_perplexity")}
            for result in results
        ]
        finals = [list(curve.values())[-1] for curve in curves if curve]
        summaries[label] = {
            "settings": settings,
            "status": [result.status for result in results],
            "final_perplexity": [round(value, 1) for value in finals],
            "mean_final_perplexity": round(statistics.mean(finals), 1) if finals else None,
            "largest_perplexity": max((value for curve in curves for value in curve.values()), default=0.0),
            "curve": {
                done: round(statistics.geometric_mean([curve[done] for curve in curves]), 2)
                for done in sorted(set.intersection(*map(set, curves)))
            },
        }
    return summaries


def plot(results: dict[str, dict[str, dict[str, Any]]]) -> Figure:
    """Draw a panel a question: held-out perplexity over rounds, the last value behind each line."""
    columns = 2
    rows = -(-len(results) // columns)
    figure = Figure(figsize=(18, 4.4 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for axes, (title, lines) in zip(panels, results.items(), strict=False):
        ordered = sorted(lines.items(), key=lambda item: -(item[1]["mean_final_perplexity"] or 1e9))
        for label, line in ordered:
            standard = label.startswith(("CIFG", "Transformer"))
            axes.plot(
                list(map(int, line["curve"])),
                list(line["curve"].values()),
                linestyle="--" if standard else "-",
                color="black" if label in ("CIFG", "Transformer") else None,
                linewidth=3 if label.endswith("(chosen)") else 1.5,
                label=f"{line['mean_final_perplexity']:.0f}  {label}",
            )
        axes.set_yscale("log")
        axes.set_ylim(200, 5000)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.set_title(title, loc="left", fontweight="bold")
        axes.set_xlabel("rounds done")
        axes.set_ylabel("held-out perplexity")
        axes.legend(frameon=False, title="at the end", loc="center left", bbox_to_anchor=(1.0, 0.5), alignment="left")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(panels):
        axes.set_axis_off()
    return figure


if __name__ == "__main__":
    main()
