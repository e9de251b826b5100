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


MOST_AT_ONCE, PIECE = 2**23, 2**19
"""Numbers that `inner_products` multiplies at once on a CPU, at most, and of the pieces that it else takes, about."""


def inner_products(x: jax.Array) -> jax.Array:
    """Multiply the rows of each matrix by each other, in float32: [units, rows, width] to [units, rows, rows].

    What is far larger than a CPU's caches it multiplies at full rate only in pieces that these hold.
    """
    return jax.lax.platform_dependent(x, cpu=_in_pieces, default=_of_all_rows)


def _of_all_rows(x: jax.Array) -> jax.Array:
    return jnp.einsum("usw,utw->ust", x, x, precision="highest", preferred_element_type=jnp.float32)


def _in_pieces(x: jax.Array) -> jax.Array:
    width = x.shape[-1]
    if x.size <= MOST_AT_ONCE:
        return _of_all_rows(x)
    pieces = min(width, -(-x.size // PIECE))
    size = width // pieces

    def add(number: jax.Array, total: jax.Array) -> jax.Array:
        piece = jax.lax.dynamic_slice_in_dim(x, number * size, size, axis=2)
        # Copied first, the piece is contiguous.
        return total + _of_all_rows(jax.lax.optimization_barrier(piece))

    return jax.lax.fori_loop(0, pieces, add, _of_all_rows(x[..., pieces * size :]))
