"""What the page on models says that each architecture computes, in NumPy: a reference in float64."""

import re
from pathlib import Path

import jax
import numpy as np

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def lines_of_the_page():
    """Run the page's lines; returns their functions by name, which call each other by these names."""
    (code,) = re.findall(r"^```python layout\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    functions = {}
    exec(code, functions)
    return functions


def tensors_of(params):
    """Name the arrays as the page does."""
    named = jax.tree_util.tree_leaves_with_path(params)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf, np.float64) for path, leaf in named
    }
