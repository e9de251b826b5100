"""Matrix products on JAX: a request's variant is JSON of a formula for `einsum` and the shapes of two factors.

Usage: python -m benchmarks.simulation.peers.jax_products
"""

import functools
import sys

import jax
import jax.numpy as jnp

from benchmarks.simulation.peers.product_timing import time_product
from benchmarks.simulation.peers.protocol import RoundAnswer, private_standard_output, serve


class JaxProducts:
    """See `protocol.Contestant`."""

    variants = ()
    packages = ("jax", "jaxlib")
    configuration = "one JAX device on one core"

    def run_round(self, variant: str) -> RoundAnswer:
        return time_product(variant, jnp.asarray, _multiply, jax.block_until_ready)


@functools.partial(jax.jit, static_argnums=0)
def _multiply(formula: str, lefts: list[jax.Array], rights: list[jax.Array]) -> list[jax.Array]:
    return [jnp.einsum(formula, left, right) for left, right in zip(lefts, rights, strict=True)]


if __name__ == "__main__":
    answers = private_standard_output()
    jax.config.update("jax_num_cpu_devices", 1)
    serve(JaxProducts(), sys.stdin, answers)
