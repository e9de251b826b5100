"""Named grids for `fedlm laws run`."""

from typing import Any

_SMALL: dict[str, Any] = {
    "models": [
        *("transformer_2x64", "transformer_2x96", "transformer_3x128", "transformer_4x192", "transformer_4x256"),
    ],
    # In short trainings of the smallest model the best rate lay between 2^-5 and 2^-7, with noise and without, and that
    # of wider models lies lower.
    "learning_rates": [2.0**-8.5, 2.0**-7, 2.0**-5.5],
    "noise_batch_ratios": [0.0, *(2.0**-power for power in (14, 12, 10, 8, 6))],
    "batch_sizes": [32],
    "steps": [512],
    "seeds": [0, 1],
    "length": 32,
    "warmup_steps": 32,
    "block_steps": 32,
}

_MCKENNA: dict[str, Any] = {
    "models": [
        *("bert_tiny", "bert_mini", "bert_small", "bert_medium", "bert_base", "bert_large", "bert_mega"),
    ],
    "learning_rates": [2.0**-9, 2.0**-8, 2.0**-7],
    "noise_batch_ratios": [0.0, *(2.0**-power for power in range(23, 5, -1))],
    "batch_sizes": [1024],
    "steps": [128_000],
    "length": 512,
    "packing": "none",
    "clip_norm": 1.0,
    "schedule": "exponential",
    "final_rate": 0.1,
    "warmup_steps": 1000,
    "block_steps": 100,
    "microbatch_size": 16,
}

_VAULTGEMMA: dict[str, Any] = {
    "models": ["vaultgemma_1m", "vaultgemma_10m", "vaultgemma_20m", "vaultgemma_100m"],
    "learning_rates": [2.0**-power for power in (11, 10, 9, 8, 7, 6, 5)],
    "noise_batch_ratios": [0.0, *(2.0**-power for power in range(22, 9, -2))],
    "batch_sizes": [1024],
    "steps": [2000, 4000, 8000, 16_000, 32_000],
    "length": 1024,
    "clip_norm": 1.0,
    "warmup_steps": 1000,
    "block_steps": 100,
    "microbatch_size": 16,
}

_KAPLAN: dict[str, Any] = {
    "models": [
        *("transformer_2x128", "transformer_3x256", "transformer_4x512", "transformer_6x768", "transformer_12x768"),
        *("transformer_24x1024", "transformer_36x1280", "transformer_48x1600"),
    ],
    "learning_rates": [2.0**-11, 2.0**-10, 2.0**-9],
    "batch_sizes": [512],
    "steps": [250_000],
    "length": 1024,
    "clip_norm": None,
    "schedule": "cosine",
    "final_rate": 0.0,
    "warmup_steps": 3000,
    "block_steps": 100,
    "heldout_examples": 512,
    "microbatch_size": 16,
}

PRESETS: dict[str, dict[str, Any]] = {
    "small": _SMALL,
    "mckenna2025": _MCKENNA,
    "vaultgemma": _VAULTGEMMA,
    "kaplan2020": _KAPLAN,
    "kaplan2020-data": {
        **_KAPLAN,
        "models": ["transformer_3x256", "transformer_6x768", "transformer_36x1280"],
        # 22 million to 22 billion tokens.
        "training_examples": [21_500, 68_000, 215_000, 680_000, 2_150_000, 6_800_000, 21_500_000],
    },
    "kaplan2020-batches": {
        **_KAPLAN,
        "models": ["transformer_6x768"],
        "batch_sizes": [32, 64, 128, 256, 512, 1024, 2048],
    },
}
"""`small` suits two CPU cores; the others are made for accelerators, after publications. Of VaultGemma's grid only the
procedure is published; its models, rates, ratios and numbers of steps are ours. So are the shapes, but the first and
the last two, and the rates of Kaplan et al.

| preset | after |
| --- | --- |
| `mckenna2025` | McKenna et al. 2025, section 3.2: the whole grid |
| `vaultgemma` | the VaultGemma report, section 6: seven learning rates and five numbers of steps of a configuration |
| `kaplan2020` | Kaplan et al. 2020, section 2.2: sizes and compute |
| `kaplan2020-data` | section 4: 22 million to 22 billion tokens |
| `kaplan2020-batches` | section 5.1: batch sizes |
"""
