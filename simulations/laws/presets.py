"""Named grids for `fedlm laws run`."""

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    "small": {
        "models": [
            *("transformer_2x64", "transformer_2x96", "transformer_3x128", "transformer_4x192", "transformer_4x256"),
        ],
        "learning_rates": [2.0**-9, 2.0**-7, 2.0**-5],
        "noise_batch_ratios": [0.0, *(2.0**-power for power in (14, 12, 10, 8, 6))],
        "batch_sizes": [32],
        "steps": [1024],
        "seeds": [0, 1],
        "length": 32,
        "warmup_steps": 32,
        "block_steps": 32,
        "microbatch_size": 8,
    },
}
