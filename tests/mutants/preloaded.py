"""What processes that run tests begin with: it takes long to load and is not ours."""

import os

# As tests/conftest.py does before it loads JAX.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "4"

import jax
import optax
import pytest
import scipy.optimize
import scipy.stats

__all__ = ["jax", "optax", "pytest", "scipy"]
