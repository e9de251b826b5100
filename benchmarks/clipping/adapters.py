"""What clipped sums of gradients cost with low-rank adapters in place of a whole model: time and memory.

    python -m benchmarks.clipping.adapters --model vaultgemma_10m --rank 8

Prints a JSON object for each: parameters trained, the compiler's own count of memory, and milliseconds. Both take
turns, and the ratio is the median of those within a turn.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

from benchmarks.clipping.steps import CLIP_NORM, draw_batch
from fedlm.fl_core.clipping.methods import Clipping, clipped_sum
from fedlm.models.base import given_frozen
from fedlm.models.layers.lora import LoraConfig, lora_model
from fedlm.models.registry import create_model


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vaultgemma_10m")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--method", default="bookkeeping")
    parser.add_argument("--examples", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--passes", type=int, default=7)
    arguments = parser.parse_args()
    base = create_model(arguments.model)
    whole = base.init(jax.random.key(0))
    adapted = lora_model(base, LoraConfig(arguments.rank, float(arguments.rank)))
    adapters = jax.tree_util.tree_map(lambda leaf: leaf + 0.01, adapted.init(jax.random.key(1)))
    batch = draw_batch(base, arguments.examples, arguments.length)
    clipping = Clipping(arguments.method, CLIP_NORM)

    def prepared(model: Any, params: Any, frozen: Any) -> tuple[Callable[[], Any], dict[str, int]]:
        def step(params: Any, frozen: Any) -> Any:
            return clipped_sum(clipping, given_frozen(model, frozen), params, batch, units=arguments.examples).gradient

        compiled = jax.jit(step).lower(params, frozen).compile()
        used: Any = compiled.memory_analysis()
        about = {
            "trained": sum(leaf.size for leaf in jax.tree_util.tree_leaves(params)),
            "arguments_mb": round(used.argument_size_in_bytes / 1e6, 1),
            "outputs_mb": round(used.output_size_in_bytes / 1e6, 1),
            "temporaries_mb": round(used.temp_size_in_bytes / 1e6, 1),
        }
        return lambda: jax.block_until_ready(compiled(params, frozen)), about

    programs = {"whole": prepared(base, whole, ()), "adapters": prepared(adapted, adapters, whole)}
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for run, _ in programs.values():
        run()
    for _ in range(arguments.passes):
        for name, (run, _) in programs.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    for name, (_, about) in programs.items():
        print(json.dumps({"what": name, **about, "ms": round(1000 * statistics.median(seconds[name]), 1)}))
    ratios = [one / other for one, other in zip(seconds["adapters"], seconds["whole"], strict=True)]
    print(json.dumps({"time of adapters over whole": round(statistics.median(ratios), 3)}))


if __name__ == "__main__":
    main()
