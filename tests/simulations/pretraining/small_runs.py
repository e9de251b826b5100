"""Small central runs for tests: their settings, their models, and observers that end them."""

import json

from fedlm.fl_core.composed_settings import compose
from fedlm.models.model_files import ARCHITECTURES, describe_model
from fedlm.simulations.pretraining.run import Observer, run_pretraining
from fedlm.simulations.pretraining.settings import Pretraining

SETTINGS = {
    "steps": 4,
    "batch_size": 6,
    "length": 6,
    "learning_rate": 0.05,
    "checkpoint_every": 2,
    "heldout_examples": 20,
    "test_examples": 20,
    "privacy": "none",
}
PRIVATE = {"privacy": "dpsgd", "noise_multiplier": 1.0, "noise_seed": "experiment"}


def described(folder, architecture, **config):
    """Write the description of a model that compiles in a moment; returns its name."""
    path = folder / "tiny.json"
    build, kind = ARCHITECTURES[architecture]
    path.write_text(json.dumps(describe_model(build, kind(**{"vocabulary_size": 120} | config))))
    return str(path)


def train(out, observer=None, **settings):
    """Run a central training, or the rest of it; returns its summary."""
    return run_pretraining(compose(Pretraining, **SETTINGS | settings), out, observer)


class Interrupt(Observer):
    """Ends the process where the row of a step is shown."""

    def __init__(self, step):
        self.step = step

    def published(self, row):
        if row["step"] == self.step:
            raise KeyboardInterrupt
