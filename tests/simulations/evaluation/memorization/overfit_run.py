"""Models that know a few sequences by heart, for tests."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedlm.fl_core.runs.files.checkpoints import Checkpoints
from fedlm.models.base import Batch, batch_loss
from fedlm.models.families.transformer import TransformerConfig, transformer
from fedlm.models.registry import ModelEntry, create_model
from fedlm.simulations.pretraining.batches.opening_units import open_units
from fedlm.simulations.pretraining.inserted_canaries import canaries_of, with_canaries

SMALL = ModelEntry(transformer, TransformerConfig(layers=1, heads=2, embedding=32, mlp=64))
SETTINGS = {
    "model": "tests.simulations.evaluation.memorization.overfit_run:SMALL",
    "length": 24,
    "precision": "float32",
    "unit": "example",
    "packing": "none",
    "sequences_per_unit": 1,
    "seed": 3,
    "canaries": 3,
    "canary_repeats": [1, 8],
}


def overfit(model, params, sequences, steps):
    """Train on all sequences at once, int32 [n, length + 1]."""
    optimizer = optax.adam(1e-2)
    batch = Batch(jnp.asarray(sequences), jnp.ones(len(sequences)))

    @jax.jit
    def train(params):
        def step(_, carry):
            params, state = carry
            gradient = jax.grad(lambda params: batch_loss(model, params, batch)[0])(params)
            updates, state = optimizer.update(gradient, state)
            return optax.apply_updates(params, updates), state

        return jax.lax.fori_loop(0, steps, step, (params, optimizer.init(params)))[0]

    return train(params)


def write_run(folder, store, cache, steps, **settings):
    """Write the checkpoint that a central run on a store's train split, with canaries, would leave."""
    settings = SETTINGS | {"data": str(store.path)} | settings
    model = create_model(settings["model"], store.vocabulary_size)
    params = model.init(jax.random.key(0))
    if steps:
        names = ("length", "unit", "packing", "sequences_per_unit", "seed")
        units = open_units(store, "train", cache=cache, **{name: settings[name] for name in names})
        canaries = canaries_of(settings, store.vocabulary_size)
        units = with_canaries(units, canaries) if canaries else units
        params = overfit(model, params, units.sequences(np.arange(units.count))[0][:, 0], steps)
    about = {"pretraining": settings, "vocabulary": store.fingerprint}
    folder.mkdir()
    with Checkpoints(folder / "checkpoints") as checkpoints:
        checkpoints.save(max(steps, 1), {"server": {"params": params}, "spent": np.zeros(3)}, about)
    return folder
