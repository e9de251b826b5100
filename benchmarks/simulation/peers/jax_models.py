"""The models of the comparison, for the contestants that run on JAX."""

from benchmarks.simulation.peers.lstm import lstm
from fedlm.models.base import Model
from fedlm.models.registry import create_model


def create(name: str, vocabulary_size: int) -> Model:
    """Build a model by name.

    Args:
      name: `lstm_1m`, or a name of fedlm's registry.
      vocabulary_size: number of token ids.

    Returns:
      The model.
    """
    return lstm(name, vocabulary_size) if name == "lstm_1m" else create_model(name, vocabulary_size)
