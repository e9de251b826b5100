"""Parameters as other programs keep them: arrays by name, `[outputs, inputs]` where ours are `[inputs, outputs]`.

A pytree of names that is arranged as a model's parameters are says which array is which.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedlm.models.base import Params


class StateError(ValueError):
    """A state has not the parameters of a model."""


def to_state(params: Params, names: Params, own: bool = False) -> dict[str, np.ndarray]:
    """Name parameters; kernels are views with their axes swapped, but where they are to be as our `own`."""
    state: dict[str, np.ndarray] = {}

    def put(path: tuple, name: str, leaf: Any) -> None:
        state[name] = np.asarray(leaf).T if _is_kernel(path) and not own else np.asarray(leaf)

    jax.tree_util.tree_map_with_path(put, names, params)
    return state


def from_state(state: Mapping[str, Any], names: Params, what: str, own: bool = False) -> Params:
    """Make parameters, float32 NumPy arrays, of the arrays of a state, each of which is read once.

    Args:
      names: which arrays; others are not looked at.
      what: for messages, whose state is expected.
      own: kernels are as ours, not with their axes swapped.

    Raises:
      StateError: one is missing.
    """
    if missing := sorted(set(jax.tree_util.tree_leaves(names)) - set(state)):
        raise StateError(f"has no {', '.join(missing[:5])}; expected the parameters of {what}")

    def take(path: tuple, name: str) -> np.ndarray:
        found = np.asarray(state[name], np.float32)
        return np.ascontiguousarray(found.T) if _is_kernel(path) and not own else found

    return jax.tree_util.tree_map_with_path(take, names)


def check_shapes(state: Mapping[str, Any], names: Params, like: Params, own: bool = False) -> None:
    """Refuse, as a StateError, a state with an array of another shape than a model's.

    Args:
      like: the model's parameters, of which shapes are enough.
      own: kernels are as ours, not with their axes swapped.
    """

    def check(path: tuple, name: str, leaf: Any) -> None:
        expected = leaf.shape[::-1] if _is_kernel(path) and not own else leaf.shape
        if tuple(state[name].shape) != expected:
            raise StateError(f"{name} is {tuple(state[name].shape)}, but the configuration says {expected}")

    jax.tree_util.tree_map_with_path(check, names, like)


def own_names(like: Params) -> Params:
    """Name a model's parameters by their places, as in `blocks.0.query.kernel`."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: ".".join(str(getattr(part, "key", getattr(part, "idx", part))) for part in path), like
    )


def _is_kernel(path: tuple) -> bool:
    return path[-1].key == "kernel"
