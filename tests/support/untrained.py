"""A run that nobody trained, for tests of what only reads one."""

import jax
import numpy as np

from fedlm.fl_core.composed_settings import compose, settings_as_json
from fedlm.fl_core.runs.files.checkpoints import Checkpoints
from fedlm.models.registry import create_model
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.experiments.configuration import Experiment


def untrained_run(out, **settings):
    """Write what `fedlm simulate` leaves of one round, with random parameters; returns the folder."""
    experiment = compose(Experiment, **settings)
    store = TokenStore.open(experiment.data)
    model = create_model(experiment.model, store.vocabulary_size, store.tokenizer.special_tokens)
    shapes, rng = jax.eval_shape(model.init, jax.random.key(0)), np.random.default_rng(3)
    params = jax.tree.map(lambda leaf: rng.normal(0, 0.4, leaf.shape).astype(np.float32), shapes)
    about = {"experiment": settings_as_json(experiment), "vocabulary": store.fingerprint}
    with Checkpoints(out / "checkpoints") as checkpoints:
        checkpoints.save(1, {"params": params}, about)
    return out
