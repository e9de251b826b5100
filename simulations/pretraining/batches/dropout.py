"""Keys of dropout: what is dropped of a row follows from the seed, the step and the unit alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.randomness import host_rng, random_bits
from fedlm.simulations.pretraining.batches.pipeline import Transform


@dataclass(frozen=True)
class DropoutKeys:
    """A `Transform` that adds the field `dropout`, a key for every row, to what another makes."""

    seed: int | bytes  # not negative, of any size; or a secret, see `host_rng`
    others: Transform | None = None  # None for `tokens` as they are

    def __call__(self, step: int, indices: NDArray[np.int64], tokens: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
        """See `Transform`; `dropout` is uint32 [rows, K, 2]."""
        fields = {"tokens": tokens} if self.others is None else self.others(step, indices, tokens)
        key = host_rng(self.seed, "dropout", step).integers(1 << 64, dtype=np.uint64)
        bits = random_bits(key, indices.astype(np.uint64), tokens.shape[1])
        return {**fields, "dropout": bits[..., None].view(np.uint32)}
