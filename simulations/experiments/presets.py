"""Named sets of options for `fedlm compare` and for `fedlm simulate`."""

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    "small": {
        "models": ["cifg_tiny", "si_cifg_tiny", "transformer_tiny", "si_transformer_tiny"],
        "rounds": 40,
        "cohort_size": 20,
        "client_learning_rates": [0.5, 2.0],
        "server_learning_rates": [0.01],
        "client_gradient_clip": 1.0,
        "heldout_examples": 1000,
        "evaluate_every": 5,
        "seeds": [0, 1],
    },
}
"""`small` suits a CPU and the embedded corpus. `fedlm.simulations.comparisons.benchmarks` has the published ones."""

SIMULATION_PRESETS: dict[str, dict[str, Any]] = {
    "small-private": {
        "model": "si_cifg_tiny",
        "rounds": 60,
        "cohort_size": 100,
        "cohort_sampler": "min_separation",
        "min_separation": 10,
        "max_participations": 6,
        "client_learning_rate": 0.5,
        "client_gradient_clip": 1.0,
        "client_max_batches": 8,
        "server_optimizer": "fedavgm",
        "server_momentum": 0.9,
        "server_learning_rate": 0.5,
        "heldout_examples": 2000,
        "privacy": "tree_honaker",
        "update_clip_norm": 1.0,
        "target_epsilon": 10.0,
    },
    "paper-table4": {
        "model": "si_cifg_6m",
        "rounds": 3000,
        "cohort_size": 6500,
        "cohort_sampler": "min_separation",
        "length": 10,
        "client_batch_size": 10,
        "client_epochs": 1,
        "client_max_batches": 120,
        "client_learning_rate": 0.5,
        "server_optimizer": "fedavgm",
        "server_momentum": 0.9,
        "server_learning_rate": 1.0,
        "upload_bits": 8,
        "privacy": "tree",
        "update_clip_norm": 5.0,
        "noise_multiplier": 7.0,
        "min_separation": 52,
        "max_participations": 58,
    },
}
"""`small-private` suits a CPU and the embedded corpus; `paper-table4` is the production setting of Ro et al. 2024,
with the participation that the 342,477 training clients of Stack Overflow allow."""
