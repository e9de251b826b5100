"""Reads pickled models in a process of its own; prints what they make of tokens as JSON.

Usage: python -m tests.models.pickled_model FILE FILE ..., each what was written of a list of (model, tokens).
"""

import json
import pickle
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

from fedlm.models.base import Batch, batch_loss
from fedlm.models.families.masked_language import MaskedBatch


def loss_of(model, tokens):
    """The loss of a model's first parameters."""
    params, weight = model.init(jax.random.key(0)), jnp.ones(len(tokens))
    causal = model.objective == "causal"
    batch = Batch(tokens, weight) if causal else MaskedBatch(tokens[:, :-1], tokens[:, 1:], weight)
    return float(_compiled(model, params, batch)[0])


_compiled = jax.jit(batch_loss, static_argnums=0)


if __name__ == "__main__":
    models = [model for file in sys.argv[1:] for model in pickle.loads(Path(file).read_bytes())]
    json.dump([loss_of(*model) for model in models], sys.stdout)
