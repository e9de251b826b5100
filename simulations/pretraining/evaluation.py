"""Held-out examples for models of either objective."""

from collections.abc import Iterator

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.base import Batch, Model
from models.masked_language import MaskedBatch
from simulations.federated_data import FederatedData, device_batches, evaluation_batches, rows_per_device
from simulations.pretraining.masking import MaskedWords

_MASKS_SEED = 0


def scored_batches(
    model: Model, data: FederatedData, length: int, max_examples: int | None
) -> Iterator[Batch | MaskedBatch]:
    """Lay examples of all clients out as a model's objective wants them, spread over the devices of all processes.

    Args:
      model: what is scored.
      data: the clients.
      length: tokens that the model reads in a sequence.
      max_examples: see `simulations.federated_data.evaluation_batches`.

    Yields:
      The batches. The words that are masked for a masked model are always the same.
    """
    if model.objective == "causal":
        yield from device_batches(data, length, max_examples)
        return
    # The model has the mask's id beside those of the data.
    mask = MaskedWords(model.vocabulary_size - 1, _MASKS_SEED)
    spread = NamedSharding(Mesh(np.array(jax.devices()), "devices"), PartitionSpec("devices"))
    rows = rows_per_device() * len(jax.devices())
    own = rows // jax.process_count()
    first = own * jax.process_index()
    for number, batch in enumerate(evaluation_batches(data, length, rows, max_examples, range(first, first + own))):
        places = np.arange(first, first + own, dtype=np.int64)
        fields = mask(number, places, np.asarray(batch.tokens)[:, None])
        flat = {name: array[:, 0] for name, array in fields.items()}
        yield jax.make_array_from_process_local_data(spread, MaskedBatch(**flat, weight=batch.weight))  # type: ignore[arg-type]
