"""The matrix products of a traced computation (`goals` puts them on the roofline of a device).

What is counted follows from shapes and types alone, not from what a compiler made of them: products inside loops count
as often as the loop runs, and of branches the dearest one. A product multiplies `2 m n k` times and adds, reads both
factors once and writes its result once. In a recurrence the weights are factors at every time step, and count as read
at every one: those of many lanes do not fit into a chip.
"""

import math
import string
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Product(NamedTuple):
    """A matrix product: floating point operations, bytes of its factors and result, and what it is for `einsum`."""

    flops: float
    bytes: float
    left: tuple[int, ...] = ()
    right: tuple[int, ...] = ()
    formula: str = ""


Products = Counter[Product]
"""How often each product is computed."""


def products_of(function: Callable, *arguments: Any) -> Products:
    """Count the matrix products of a function, of whose arguments the shapes and types are enough."""
    return products_in(jax.make_jaxpr(function)(*arguments).jaxpr)


def products_in(jaxpr: Any, scope: str | None = None) -> Products:
    """Count the matrix products of a traced function; where `scope` is given, those that `jax.named_scope` puts
    there."""
    total: Products = Counter()
    for equation in jaxpr.eqns:
        inside = scope in str(equation.source_info.name_stack).split("/")
        total.update(_in_equation(equation, None if inside else scope))
    return total


def total_flops(products: Products) -> float:
    return sum(count * product.flops for product, count in products.items())


def total_bytes(products: Products) -> float:
    return sum(count * product.bytes for product, count in products.items())


def as_json(products: Products) -> list[list[float]]:
    return [[product.flops, product.bytes, count] for product, count in sorted(products.items())]


def _in_equation(equation: Any, scope: str | None) -> Products:
    name, parameters = equation.primitive.name, equation.params
    if name == "dot_general":
        return Counter([_product(equation)] if scope is None else [])
    if name == "scan":
        return _times(parameters["length"], products_in(parameters["jaxpr"].jaxpr, scope))
    if name == "while":
        if products_in(parameters["body_jaxpr"].jaxpr, scope):
            raise ValueError("a loop of unknown length multiplies matrices; count the products of one iteration")
        return Counter()
    if name == "cond":
        return max((products_in(branch.jaxpr, scope) for branch in parameters["branches"]), key=total_flops)
    total: Products = Counter()
    for inner in _inner(parameters):
        total.update(products_in(inner, scope))
    return total


def _inner(parameters: dict[str, Any]) -> list[Any]:
    """The computations within an equation: of a call, a custom derivative (its first, forward one), a mapped axis."""
    values = [parameters[name] for name in ("jaxpr", "call_jaxpr", "fun_jaxpr") if name in parameters]
    return [getattr(value, "jaxpr", value) for value in values]


def _times(count: int, products: Products) -> Products:
    return Counter({product: count * times for product, times in products.items()})


def _product(equation: Any) -> Product:
    left, right = (variable.aval for variable in equation.invars)
    result = equation.outvars[0].aval
    (contracted, _), _ = equation.params["dimension_numbers"]
    summed = math.prod(left.shape[axis] for axis in contracted)
    size = sum(aval.size * aval.dtype.itemsize for aval in (left, right, result))
    return Product(2.0 * result.size * summed, float(size), left.shape, right.shape, _formula(equation))


def _formula(equation: Any) -> str:
    left, right = (variable.aval for variable in equation.invars)
    (left_summed, right_summed), (left_batch, right_batch) = equation.params["dimension_numbers"]
    letters = iter(string.ascii_lowercase)
    of_left = [next(letters) for _ in left.shape]
    of_right = [next(letters) for _ in right.shape]
    for one, other in zip((*left_summed, *left_batch), (*right_summed, *right_batch), strict=True):
        of_right[other] = of_left[one]
    batch = [of_left[axis] for axis in left_batch]
    free_left = [name for axis, name in enumerate(of_left) if axis not in (*left_summed, *left_batch)]
    free_right = [name for axis, name in enumerate(of_right) if axis not in (*right_summed, *right_batch)]
    return f"{''.join(of_left)},{''.join(of_right)}->{''.join(batch + free_left + free_right)}"
