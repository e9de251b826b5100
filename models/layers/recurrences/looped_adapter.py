"""Low-rank adapters within a loop over time. Dimension letters: B batch, T time, I inputs, R rank."""

import jax
import jax.numpy as jnp

from fedlm.models.layers.lora import Adapter
from fedlm.models.layers.parameter_uses import Recorded

Steps = tuple[jax.Array | None, ...]
"""What an adapter is given of each time step, see `LoopedAdapter.steps`."""


class LoopedAdapter:
    """An adapter that is applied at every time step of a loop, and recorded as one use of A and of B for all steps.

    Attributes:
      steps: what `add` is to be given at a step, each with the time first.
    """

    def __init__(self, adapter: Adapter | None, shape: tuple[int, ...], dtype: jax.typing.DTypeLike):
        """Begin; the shape is [batch, time, inputs], and without adapter nothing is added."""
        self._adapter, self._taps = adapter, (None, None)
        self.steps: Steps = (None, None, None)
        if adapter is None:
            return
        self._kept = adapter.kept(shape, dtype) if adapter.kept is not None else None
        taps: list[jax.Array | None] = [None, None]
        self._uses: list[tuple[Recorded, int]] = []
        for place, matrix in enumerate((adapter.a, adapter.b)):
            if isinstance(matrix, Recorded):
                output = jax.ShapeDtypeStruct((*shape[:2], matrix.shape[1]), dtype)
                number, tap = matrix.recording.begin(matrix, "multiply", output)
                self._uses.append((matrix, number))
                taps[place] = jnp.swapaxes(tap, 0, 1)
        self._a, self._b = (
            matrix.value if isinstance(matrix, Recorded) else matrix for matrix in (adapter.a, adapter.b)
        )
        self.steps = (None if self._kept is None else jnp.swapaxes(self._kept, 0, 1), *taps)

    def add(self, x: jax.Array, given: Steps) -> tuple[jax.Array | float, jax.Array | None]:
        """Compute what is added to what the matrix gives at a time step, and what comes out of A."""
        if self._adapter is None:
            return 0.0, None
        kept, narrow_tap, tap = given
        narrow = (x if kept is None else x * kept) @ self._a
        narrow = narrow if narrow_tap is None else narrow + narrow_tap
        wide = narrow @ self._b
        return self._adapter.scale * (wide if tap is None else wide + tap), narrow

    def finish(self, x_bxtxi: jax.Array, narrow_txbxr: jax.Array | None) -> None:
        """Say what came in at all time steps, [batch, time, inputs], and what came out of A."""
        if self._adapter is None or not self._uses:
            return
        assert narrow_txbxr is not None
        inputs = (x_bxtxi if self._kept is None else x_bxtxi * self._kept, jnp.swapaxes(narrow_txbxr, 0, 1))
        for (matrix, number), came_in in zip(self._uses, inputs, strict=True):
            matrix.recording.finish(number, came_in)
