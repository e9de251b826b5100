"""Parameters as files of plain arrays, which environments share that have nothing but NumPy in common."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedlm.fl_core.atomic_files import write_atomically

Tree = Any
"""Parameters: dicts, lists and tuples of arrays."""


def flatten(tree: Tree) -> dict[str, Any]:
    """Name the leaves of a tree by their paths.

    Example:
      >>> sorted(flatten({"blocks": [{"kernel": np.ones(2)}], "bias": np.ones(1)}))
      ['bias', 'blocks/0/kernel']
    """
    if not isinstance(tree, dict | list | tuple):
        return {"": np.asarray(tree)}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    flat = {f"{key}/{path}": leaf for key, branch in items for path, leaf in flatten(branch).items()}
    return {path.removesuffix("/"): leaf for path, leaf in flat.items()}


def unflatten(leaves: Mapping[str, Any]) -> Tree:
    """Undo `flatten`; branches whose keys are numbers become lists."""
    if set(leaves) == {""}:
        return leaves[""]
    branches: dict[str, dict[str, np.ndarray]] = {}
    for path, leaf in leaves.items():
        key, _, rest = path.partition("/")
        branches.setdefault(key, {})[rest] = leaf
    tree = {key: unflatten(branch) for key, branch in branches.items()}
    return [tree[key] for key in sorted(tree, key=int)] if all(key.isdigit() for key in tree) else tree


def save_params(path: Path | str, params: Tree) -> None:
    """Write parameters into an .npz file, an array for each leaf."""
    content = io.BytesIO()
    np.savez(content, **flatten(params))
    write_atomically(Path(path), content.getvalue())


def load_params(path: Path | str) -> Tree:
    """Read what `save_params` wrote: NumPy arrays."""
    with np.load(path) as file:
        return unflatten(dict(file))
