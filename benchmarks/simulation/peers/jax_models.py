"""The models of the comparison, for the contestants that run on JAX."""

import dataclasses

from benchmarks.simulation.peers.lstm import lstm
from fedlm.models.base import Model
from fedlm.models.families.cifg import CifgConfig, cifg
from fedlm.models.families.transformer import TransformerConfig, transformer
from fedlm.models.registry import ModelEntry, create_model

# Of 0.1 M parameters, of which four fifths are the table.
SMALLEST = {
    "cifg_100k": ModelEntry(cifg, CifgConfig(embedding=20, hidden=128)),
    "transformer_100k": ModelEntry(transformer, TransformerConfig(layers=2, heads=2, embedding=20, mlp=80)),
}


def create(name: str, vocabulary_size: int) -> Model:
    """Build a model by name.

    Args:
      name: `lstm_1m`, one of `SMALLEST`, or a name of fedlm's registry.
      vocabulary_size: number of token ids.

    Returns:
      The model.
    """
    if name in SMALLEST:
        build, config = SMALLEST[name]
        return build(name, dataclasses.replace(config, vocabulary_size=vocabulary_size))
    return lstm(name, vocabulary_size) if name == "lstm_1m" else create_model(name, vocabulary_size)
