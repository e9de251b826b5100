"""What every test may use. JAX gets four CPU devices, and no accelerator, before it starts."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "4"

from pathlib import Path

import numpy as np
import pytest

WORDS = (
    "the a this that one some every no file model server client round value name test list thing reads writes "
    "sends keeps returns gives takes makes finds holds new old small large first last clear local"
).split()


@pytest.fixture(scope="session")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 120 clients with 1 to about 40 sentences of made-up text, and a vocabulary of 120 tokens."""
    from simulations.datasets.client_text import ClientText
    from simulations.datasets.importing import ImportSettings, import_text
    from simulations.datasets.sources.in_memory import InMemoryText

    rng = np.random.default_rng(0)
    clients = [
        ClientText(
            f"client{index}",
            [" ".join(rng.choice(WORDS, rng.integers(3, 9))) + "." for _ in range(1 + int(rng.exponential(8)))],
        )
        for index in range(120)
    ]
    out = tmp_path_factory.mktemp("data") / "store"
    import_text("made up", InMemoryText(clients), out, ImportSettings(vocabulary_size=120), workers=1)
    return out
