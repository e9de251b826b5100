"""Named sets of options for `fedlm compare`."""

from typing import Any

_PAPER: dict[str, Any] = {
    "rounds": 3000,
    "cohort_size": 500,
    "length": 20,
    "client_batch_size": 10,
    "client_epochs": 1,
    "client_max_batches": 120,
    "server_optimizer": "fedadam",
    "server_beta1": 0.9,
    "server_beta2": 0.999,
    "server_epsilon": 1e-8,
    "seeds": [0, 1, 2, 3, 4],
}

PRESETS: dict[str, dict[str, Any]] = {
    "small": {
        "models": ["cifg_tiny", "si_cifg_tiny", "transformer_tiny", "si_transformer_tiny"],
        "rounds": 60,
        "cohort_size": 20,
        "client_learning_rates": [0.5, 2.0],
        "server_learning_rates": [0.01],
        "client_gradient_clip": 1.0,
        "heldout_examples": 2000,
        "evaluate_every": 10,
        "seeds": [0, 1],
    },
    "paper-table2": {
        **_PAPER,
        "models": ["cifg_19m", "si_cifg_19m", "transformer_21m", "si_transformer_21m"],
        "client_learning_rates": [0.1, 0.5, 1.0, 2.0],
        "server_learning_rates": [0.001, 0.01],
        "upload_bits": 32,
    },
    "paper-table3": {
        **_PAPER,
        "models": ["cifg_9m", "si_cifg_9m", "transformer_11m", "si_transformer_11m"],
        "client_learning_rates": [0.7],
        "server_learning_rates": [0.02],
        "upload_bits": 8,
    },
}
"""`small` suits a CPU and the embedded corpus; the others are the tables of Ro et al. 2024 at full size."""
