"""What laws of the `small` grid predict of a model twice as large, trained twice as long, which no fit has seen.

    python -m benchmarks.laws.larger_run [DUMPS]

It trains what is not in `results/larger` yet, some 80 minutes of one core, and writes the errors beside it.
"""

import json
import subprocess
import sys
from dataclasses import asdict

import numpy as np

from benchmarks.laws.small_grid import DATA, RESULTS, import_texts
from benchmarks.machine import describe_machine
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.simulations.laws.fit import fit_laws, is_of_loss, predict_beyond
from fedlm.simulations.laws.forms.registry import FORMS
from fedlm.simulations.laws.forms.rows import settled
from fedlm.simulations.laws.held_out import error_on
from fedlm.simulations.laws.laws_file import Laws
from fedlm.simulations.laws.measuring.grid import PRESETS
from fedlm.simulations.laws.measuring.measurements import Measurements, measurements_file, read_measurements
from fedlm.simulations.laws.surface.fitted_losses import SurfaceSettings

LARGER = RESULTS.parent / "larger"
_RUN = {
    "models": ["transformer_5x320"],
    "steps": [1024],
    "learning_rates": PRESETS["small"]["learning_rates"][:2],
    "noise_batch_ratios": [0.0, 2.0**-9],
    "seeds": [0],
}
_SHOWN_STEPS = (512, 1024)


def main() -> int:
    """Train, predict, and write the errors."""
    import_texts()
    options = [word for name, values in _RUN.items() for word in (f"--{name.replace('_', '-')}", *map(str, values))]
    run = [sys.executable, "-m", "fedlm", "laws", "run", "--preset", "small", "--data", str(DATA), "--out", str(LARGER)]
    subprocess.run([*run, *options], check=True)
    unseen = read_measurements(measurements_file(LARGER))
    laws, _ = fit_laws(read_measurements(measurements_file(RESULTS)), SurfaceSettings(draws=0), tuple(FORMS))
    result = {"machine": describe_machine(), "points": _points(laws, unseen), "errors": _errors(laws, unseen)}
    write_atomically(LARGER / "errors.json", json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0


def _errors(laws: Laws, unseen: Measurements) -> dict[str, dict[str, float]]:
    """Return the errors of each law on what it is a law of, by its name."""
    assert laws.surface is not None
    found = {"surface": asdict(error_on(unseen, settled(unseen), predict_beyond(laws.surface)))}
    for name, fitted in laws.forms.items():
        form = FORMS[name]
        rows = form.rows(unseen)
        if rows.any() and is_of_loss(form, unseen):
            found[name] = asdict(error_on(unseen, rows, fitted.predict_rows))
    return found


def _points(laws: Laws, unseen: Measurements) -> list[dict[str, float]]:
    """List the losses of some blocks at the better rate, and what the surface predicts of them."""
    assert laws.surface is not None
    predicted = predict_beyond(laws.surface)(unseen)
    points = []
    for ratio in np.unique(unseen.noise_batch_ratio):
        for step in _SHOWN_STEPS:
            rows = np.flatnonzero((unseen.noise_batch_ratio == ratio) & (unseen.step == step))
            best = rows[np.argmin(unseen.loss[rows])]
            points.append(
                {
                    "noise_batch_ratio": float(ratio),
                    "step": step,
                    "learning_rate": float(unseen.learning_rate[best]),
                    "measured": float(unseen.loss[best]),
                    "standard_error": float(unseen.loss_error[best]),
                    "predicted": float(predicted[best]),
                    "relative_error": float(predicted[best] / unseen.loss[best] - 1),
                }
            )
    return points


if __name__ == "__main__":
    sys.exit(main())
