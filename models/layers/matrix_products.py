"""Matrix products whose gradients a CPU computes at full speed.

The gradient of a matrix is a sum of outer products over rows, `x.T @ y`. XLA's CPU backend multiplies row-major arrays
at nearly the rate of the processor, but those that it has to read by columns at half of it, and in neither order of the
factors is this product free of them. Copied into the other layout first, it is; `benchmarks/simulation` shows the gain.
Accelerators read either layout as fast.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp


@jax.custom_vjp
def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Multiply float [..., inputs] by a matrix [inputs, outputs]."""
    return x @ kernel


def _forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return x @ kernel, (x, kernel)


def _backward(residuals: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = residuals
    kernel_gradient = sum_of_outer_products(x, gradient)
    return (gradient @ kernel.T).astype(x.dtype), kernel_gradient.astype(kernel.dtype)


product.defvjp(_forward, _backward)


def sum_of_outer_products(
    x: jax.Array, y: jax.Array, dtype: jax.typing.DTypeLike | None = None, exact: bool = False
) -> jax.Array:
    """Sum the outer products of two arrays' rows.

    Args:
      x: float [..., inputs].
      y: float [..., outputs], with the same axes before the last.
      dtype: of the sum; that of the factors where None.
      exact: whether float32 factors are multiplied as float32, whatever the default precision is.

    Returns:
      [inputs, outputs].
    """
    x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
    precision = jax.lax.Precision.HIGHEST if exact else None
    rows_first = (((0,), (0,)), ((), ()))
    return jax.lax.platform_dependent(
        x,
        y,
        cpu=lambda x, y: _after_a_copy(x, y, dtype, precision),
        default=lambda x, y: jax.lax.dot_general(x, y, rows_first, precision, dtype),
    )


def _after_a_copy(
    x: jax.Array, y: jax.Array, dtype: jax.typing.DTypeLike | None, precision: jax.lax.Precision | None
) -> jax.Array:
    (rows, inputs), outputs = x.shape, y.shape[1]
    # The barrier keeps the compiler from folding a transposition into the product.
    copied = jax.lax.optimization_barrier
    if rows * inputs <= rows * outputs + inputs * outputs:
        return jnp.matmul(copied(x.T), y, precision=precision, preferred_element_type=dtype)
    return copied(copied(jnp.matmul(copied(y.T), x, precision=precision, preferred_element_type=dtype)).T)


def constant_product(kernel: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """Prepare to multiply a few rows at a time by a matrix [inputs, outputs], at every step of a loop.

    To whoever differentiates what it returns, which maps float [..., inputs] to [..., outputs], the matrix is constant.
    """
    # Outside the loop it is copied once.
    transposed = jax.lax.optimization_barrier(kernel.T)
    return lambda x: _constant_product(x, kernel, transposed)


@jax.custom_vjp
def _constant_product(x: jax.Array, kernel: jax.Array, transposed: jax.Array) -> jax.Array:
    return x @ kernel


def _constant_forward(x: jax.Array, kernel: jax.Array, transposed: jax.Array) -> tuple[jax.Array, tuple]:
    return x @ kernel, (kernel, transposed)


def _constant_backward(residuals: tuple, gradient: jax.Array) -> tuple[jax.Array, None, None]:
    on_cpu, elsewhere = lambda y, _, transposed: y @ transposed, lambda y, kernel, _: y @ kernel.T
    return jax.lax.platform_dependent(gradient, *residuals, cpu=on_cpu, default=elsewhere), None, None


_constant_product.defvjp(_constant_forward, _constant_backward)


PIECE = 256
"""Columns of a matrix that `inner_products` multiplies at once."""


def inner_products(x: jax.Array, y: jax.Array) -> jax.Array:
    """Multiply the rows of matrices by each other, in float32, with rounding of at most `inner_product_error`.

    Args:
      x: float [units, rows, width].
      y: float [units, other rows, width].

    Returns:
      [units, rows, other rows].
    """
    pieces = x.shape[-1] // PIECE

    def multiply(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.einsum("usw,utw->ust", x, y, precision="highest", preferred_element_type=jnp.float32)

    def add(number: jax.Array, total: jax.Array) -> jax.Array:
        taken = [jax.lax.dynamic_slice_in_dim(factor, number * PIECE, PIECE, axis=2) for factor in (x, y)]
        # Copied first, a piece is contiguous, and a CPU's caches hold it.
        return total + multiply(*jax.lax.optimization_barrier(taken))

    rest = multiply(x[..., pieces * PIECE :], y[..., pieces * PIECE :])
    return jax.lax.fori_loop(0, pieces, add, rest) if pieces else rest


def inner_product_error(width: int) -> float:
    """Bound the rounding of an inner product of float32 vectors, as a part of the product of their lengths.

    A sum of n products, added in any order, is off by at most n 2^-24 of the sum of their absolute values (Higham 2002,
    "Accuracy and stability of numerical algorithms", section 3.1, to first order). Long vectors of equal numbers that
    are added one after another come near it.
    """
    return 2.0**-24 * (min(width, PIECE) + width // PIECE + 1)
