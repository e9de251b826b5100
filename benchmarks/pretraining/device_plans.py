"""What steps of a Gemma decoder of 1 B parameters need of each of 8 and of 256 devices, by the compiler's own count.

No device is needed, and nothing is computed: the programs of `fedlm pretrain` are compiled for CPU devices, as `fedlm
pretrain --plan-devices` does, for plain and private steps with the state spread over the devices.

    python -m benchmarks.pretraining.device_plans
    python -m benchmarks.pretraining.device_plans --model vaultgemma_100m --devices 2 --microbatch 4
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import optax

from fedlm.fl_core.clipping.methods import Clipping
from fedlm.models.base import parameter_count
from fedlm.models.precision import precision_scope, with_precision
from fedlm.models.registry import create_model
from fedlm.simulations.pretraining.device_plan import plan_step
from fedlm.simulations.pretraining.microbatches import StepRules
from fedlm.simulations.pretraining.trainer import Trainer

RESULTS = Path(__file__).parent / "results"
KINDS = ("plain", "private")


def main(words: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(words)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", max(arguments.devices))
    rows = []
    for devices in arguments.devices:
        for kind in arguments.kinds:
            rows.append(measure(arguments, devices, kind == "private"))
            print(as_line(rows[-1]), flush=True)
            arguments.out.mkdir(parents=True, exist_ok=True)
            found = {"jax": jax.__version__, "rows": rows}
            (arguments.out / "device_plans.json").write_text(json.dumps(found, indent=2) + "\n")


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vaultgemma_1b")
    parser.add_argument("--devices", type=int, nargs="+", default=[8, 256])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--sharding", choices=("full", "data"), default="full")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--microbatch", type=int, default=1, help="sequences that a device takes at once")
    parser.add_argument("--batch", type=int, default=2048, help="sequences of a step")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args(words)


def measure(arguments: argparse.Namespace, devices: int, private: bool) -> dict[str, Any]:
    """Plan a step, and time how long that takes."""
    model = with_precision(create_model(arguments.model), arguments.precision)
    rules = StepRules(
        Clipping("bookkeeping", 1.0) if private else None, float(private), arguments.batch, arguments.microbatch
    )
    trainer = Trainer(model, optax.adam(1e-3), rules, arguments.sharding, devices=jax.devices()[:devices])
    began = time.monotonic()
    with precision_scope(arguments.precision):
        plan = plan_step(trainer, 1, arguments.length, compiling=lambda name: print(f"compiling {name}", flush=True))
    return {
        "model": model.name,
        "parameters": parameter_count(model),
        "private": private,
        **{name: getattr(arguments, name) for name in ("sharding", "precision", "length", "microbatch", "batch")},
        "seconds": round(time.monotonic() - began, 1),
        "devices": devices,
        "memory": plan.memory,
        "exchanged": plan.exchanged,
        "kept": plan.kept,
        "microbatches": plan.microbatches,
        "phases": {
            phase.name: {"memory": phase.memory, "held": phase.held, "sent": phase.exchanged, **phase.needs._asdict()}
            for phase in plan.phases
        },
    }


def as_line(row: dict[str, Any]) -> str:
    """Write a row of a table in Markdown, in GB."""
    phases = [f"{phase['memory'] / 1e9:.2f} / {phase['sent'] / 1e9:.3g}" for phase in row["phases"].values()]
    total = f"{row['memory'] / 1e9:.2f} | {row['exchanged'] / 1e9:.4g}"
    return f"| {row['devices']}, {KINDS[row['private']]} | {' | '.join(phases)} | {total} |"


if __name__ == "__main__":
    main()
