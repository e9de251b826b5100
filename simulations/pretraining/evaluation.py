"""Held-out examples for models of either objective."""

from collections.abc import Iterator

import numpy as np

from fedlm.models.base import Batch, Model
from fedlm.models.families.masked_language import MaskedBatch
from fedlm.simulations.data.federated_data import FederatedData, device_batches
from fedlm.simulations.pretraining.batches.masking import MaskedWords

_MASKS_SEED = 0


def scored_batches(
    model: Model, data: FederatedData, length: int, max_examples: int | None
) -> Iterator[Batch | MaskedBatch]:
    """Lay examples of all clients out as a model's objective wants them, spread over the devices of all processes. The
    words that are masked for a masked model are always the same."""
    if model.objective == "causal":
        return device_batches(data, length, max_examples)
    # The model has the mask's id beside those of the data.
    mask = MaskedWords(model.vocabulary_size - 1, _MASKS_SEED)

    def masked(number: int, rows: range, batch: Batch) -> MaskedBatch:
        fields = mask(number, np.array(rows), np.asarray(batch.tokens)[:, None])
        return MaskedBatch(**{name: array[:, 0] for name, array in fields.items()}, weight=batch.weight)  # type: ignore[arg-type]

    return device_batches(data, length, max_examples, masked)
