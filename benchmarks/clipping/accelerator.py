"""Tokens a second of large models, private and not, and which part of the hardware's peak they reach.

The model's own arithmetic is what a non-private gradient of one row takes, by the compiler's count before it optimises;
what clipping adds does not count as useful. Model FLOPs utilization (Chowdhery et al. 2022, "PaLM", appendix B) is that
arithmetic per second over the peak of the device's specification, where it is known; beside it stands the rate that a
large matrix product reaches on the same device.
"""

import argparse
import json
import statistics
from typing import Any, get_args

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from benchmarks.clipping.steps import KINDS, CompiledStep, Setting, compile_step, draw_batch
from benchmarks.machine import describe_machine
from benchmarks.simulation.peers.protocol import timed
from benchmarks.simulation.profile_round import matrix_product_rate
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.models.base import Model, Params, WeightedBatch, batch_loss, parameter_count
from fedlm.models.precision import Precision, precision_scope, resolve_precision, with_precision
from fedlm.models.registry import MODELS, create_model
from fedlm.models.transformer import TransformerConfig, transformer

DECODER = "decoder_100m"
DECODER_CONFIG = TransformerConfig(vocabulary_size=32_000, layers=12, heads=12, embedding=768, mlp=3072)
PEAK_FLOPS: dict[str, dict[str, float]] = {
    "NVIDIA H100 PCIe": {"bfloat16": 756e12, "tf32": 378e12},
    "NVIDIA H100": {"bfloat16": 989e12, "tf32": 494e12},
    "NVIDIA H200": {"bfloat16": 989e12, "tf32": 494e12},
    "NVIDIA A100": {"bfloat16": 312e12, "tf32": 156e12},
    "NVIDIA L4": {"bfloat16": 121e12, "tf32": 60e12},
    "TPU v4": {"bfloat16": 275e12},
    "TPU v5 lite": {"bfloat16": 197e12},
}
"""Dense floating point operations a second, by how a device's kind begins, of the makers' data sheets."""
PRODUCT_SIZE = {"cpu": 2048}
LARGE_PRODUCT = 8192
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"


def add_options(parser: argparse._ArgumentGroup) -> None:
    """Add the options that only this measurement has."""
    parser.add_argument(
        "--large-models", nargs="+", choices=[DECODER, *MODELS], default=["bert_base", DECODER], metavar="MODEL"
    )
    parser.add_argument("--batch", type=int, default=64, help="examples of a step")
    parser.add_argument("--length", type=int, default=512, help="tokens of an example")
    parser.add_argument(
        "--precisions", nargs="+", choices=get_args(Precision), default=["auto"], help="what models compute in"
    )


def measure(arguments: argparse.Namespace, console: Console) -> None:
    """Measure all models in all precisions, write `accelerator.json`, and print tables."""
    platform = jax.default_backend()
    record: dict[str, Any] = {"machine": describe_machine(), "batch": [arguments.batch, arguments.length], "cases": []}
    for wanted in arguments.precisions:
        precision = resolve_precision(wanted, platform)
        dtype = jnp.bfloat16 if precision == "bfloat16" else jnp.float32
        with precision_scope(precision):
            product = matrix_product_rate(dtype, PRODUCT_SIZE.get(platform, LARGE_PRODUCT)) * jax.local_device_count()
            for name in arguments.large_models:
                console.log(f"{name}, {precision}")
                case = _measure_model(name, precision, arguments, console)
                case["matrix_product_flops"] = product
                record["cases"].append(_with_rates(case))
                console.print(_table(record["cases"][-1]))
                write_atomically(arguments.results / "accelerator.json", json.dumps(record, indent=2) + "\n")


def model_flops_a_token(model: Model, params: Params, row: WeightedBatch, length: int) -> float:
    """Count the arithmetic of a non-private gradient.

    Args:
      model: what is differentiated.
      params: its parameters.
      row: a batch of one.
      length: tokens of the row.

    Returns:
      Floating point operations a token.
    """
    gradient = jax.jit(jax.grad(lambda params, row: batch_loss(model, params, row)[0]))
    return float(gradient.lower(params, row).cost_analysis()["flops"]) / length


def _measure_model(name: str, precision: Precision, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    model = transformer(DECODER, DECODER_CONFIG) if name == DECODER else create_model(name)
    model = with_precision(model, precision)
    params, batch = model.init(jax.random.key(0)), draw_batch(model, arguments.batch, arguments.length)
    row = jax.tree_util.tree_map(lambda leaf: leaf[:1], batch)
    kinds: dict[str, dict[str, Any]] = {}
    for kind in arguments.kinds:
        tried = [_try(model, params, batch, setting, arguments.passes) for setting in _settings(kind, arguments)]
        for one in tried:
            console.log(f"  {kind}, {one['microbatch']} at a time: {one.get('seconds', OUT_OF_MEMORY)}")
        ran = [one for one in tried if "seconds" in one]
        if ran:
            kinds[kind] = {**min(ran, key=lambda one: one["seconds"]), "tried": tried}
    return {
        "model": name,
        "parameters": parameter_count(model),
        "precision": precision,
        "tokens": arguments.batch * arguments.length,
        "model_flops_a_token": model_flops_a_token(model, params, row, arguments.length),
        "kinds": kinds,
    }


def _settings(kind: str, arguments: argparse.Namespace) -> list[Setting]:
    lanes = jax.local_device_count()
    share = arguments.batch // lanes
    sizes = arguments.microbatches or [size for size in (1, 4, 16, 64, 256) if size < share] + [share]
    return [Setting(kind, size, lanes) for size in sizes if arguments.batch % (size * lanes) == 0]


def _try(model: Model, params: Params, batch: WeightedBatch, setting: Setting, passes: int) -> dict[str, Any]:
    result: dict[str, Any] = {"microbatch": setting.microbatch, "devices": setting.lanes}
    try:
        step: CompiledStep = compile_step(model, params, batch, setting)
        step.run()
        seconds = [timed(step.run)[0] for _ in range(passes)]
    except jax.errors.JaxRuntimeError as error:
        if OUT_OF_MEMORY not in str(error):
            raise
        return result | {"out_of_memory": True}
    return result | {"seconds": statistics.median(seconds), "memory_mib": round(step.memory_bytes / 2**20, 1)}


def _with_rates(case: dict[str, Any]) -> dict[str, Any]:
    device = jax.local_devices()[0].device_kind
    known = next((peaks for kind, peaks in PEAK_FLOPS.items() if device.startswith(kind)), {})
    peak = known.get(case["precision"])
    plain = case["kinds"].get("plain")
    for measured in case["kinds"].values():
        rate = case["tokens"] / measured["seconds"]
        measured["tokens_per_second"] = round(rate, 1)
        useful = rate * case["model_flops_a_token"]
        measured["part_of_matrix_product_rate"] = round(useful / case["matrix_product_flops"], 4)
        measured["mfu"] = round(useful / peak / jax.local_device_count(), 4) if peak else None
        measured["over_plain"] = round(measured["seconds"] / plain["seconds"], 3) if plain else None
    return case


def _table(case: dict[str, Any]) -> Table:
    result = Table(title=f"{case['model']}, {case['parameters'] / 1e6:.1f} M parameters, {case['precision']}")
    result.add_column("step", no_wrap=True)
    for heading in ("at a time", "tokens/s", "over non-private", "MFU", "of a matrix product's rate", "MiB"):
        result.add_column(heading, justify="right")
    for kind in KINDS:
        if kind in case["kinds"]:
            one = case["kinds"][kind]
            mfu = "unknown peak" if one["mfu"] is None else f"{one['mfu']:.1%}"
            over = "" if one["over_plain"] is None else f"{one['over_plain']:.2f}"
            part = f"{one['part_of_matrix_product_rate']:.1%}"
            cells = (f"{one['microbatch']}", f"{one['tokens_per_second']:.0f}", over, mfu, part)
            result.add_row(kind, *cells, f"{one['memory_mib']:.0f}")
    return result
