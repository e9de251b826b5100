"""The few ways in which a layer may use a parameter, and the recording of them.

Whoever needs the gradient of each example, but not as arrays of every parameter's size, needs for each use of a
parameter the layer's input and the gradient at its output: the gradient is a sum over positions of their outer
products. In a model whose parameters are used by these functions alone, `record_uses` finds both with one
differentiation, for tied parameters too. What only reads a parameter, and lets no gradient pass, does so by `constant`.
The first axis of every `x` and `tokens` must be that of the examples.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, NoReturn

import jax
import jax.numpy as jnp

from fedlm.models.layers.matrix_products import product

Kind = Literal["multiply", "multiply_transposed", "look_up", "add", "scale", "score"]


class Use(NamedTuple):
    """One use of a parameter.

    Attributes:
      parameter: its number among the leaves of the parameters.
      kind: the function of this module that it was used by.
      inputs: what came in: float [examples, ..., width], or the int tokens [examples, ...] of `look_up`; None where
        the gradient does not depend on it (`add`); a `fedlm.models.layers.linear_head.Scores` where targets were scored
        (`score`), or a `fedlm.models.layers.blocked_head.Scoring` where that was done block by block.
      output: shape and dtype of what came out, [examples, ..., width]; of `score` the losses, [examples, ...].
    """

    parameter: int
    kind: Kind
    inputs: Any
    output: jax.ShapeDtypeStruct


class UnrecordedUseError(Exception):
    """A parameter was used in another way than by the functions of this module."""


class Recording:
    """The uses of parameters, in order, while a function is traced."""

    def __init__(self, taps: Sequence[jax.Array] | None = None):
        """Begin with zeros of each use's output's shape: differentiating by these gives the gradients at the outputs.

        Args:
          taps: in the order of the uses; None where only shapes are wanted.
        """
        self.uses: list[Use] = []
        self._taps = taps

    def begin(self, parameter: "Recorded", kind: Kind, output: jax.ShapeDtypeStruct) -> tuple[int, jax.Array]:
        """Begin to record a use, before its input is known.

        Args:
          parameter: what is used.
          kind: how.
          output: shape and dtype of what will come out.

        Returns:
          The use's number, for `finish`, and zeros of the output's shape, by which to differentiate.
        """
        number = len(self.uses)
        self.uses.append(Use(parameter.number, kind, None, output))
        return number, jnp.zeros(output.shape, output.dtype) if self._taps is None else self._taps[number]

    def finish(self, number: int, inputs: Any) -> None:
        """Say what came into the use that `begin` numbered; see `Use.inputs`."""
        self.uses[number] = self.uses[number]._replace(inputs=inputs)

    def observe(self, parameter: "Recorded", kind: Kind, inputs: jax.Array | None, output: jax.Array) -> jax.Array:
        """Record a use whose input and output are known, and pass its output on."""
        number, tap = self.begin(parameter, kind, jax.ShapeDtypeStruct(output.shape, output.dtype))
        self.finish(number, inputs)
        return with_tap(output, tap)


class Recorded:
    """Stands for a parameter while its uses are recorded. It is no array: any other use of it is an error.

    Attributes:
      value: the parameter.
      number: of the leaf that it is.
      recording: where its uses are kept.
    """

    def __init__(self, value: jax.Array, number: int, recording: Recording, name: str):
        self.value, self.number, self.recording, self._name = value, number, recording, name
        self.shape, self.dtype, self.ndim, self.size = value.shape, value.dtype, value.ndim, value.size

    def astype(self, dtype: Any) -> "Recorded":
        """Compute with another dtype."""
        return Recorded(self.value.astype(dtype), self.number, self.recording, self._name)

    def __jax_array__(self) -> NoReturn:
        self._refuse()

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        self._refuse()

    def __getitem__(self, index: Any) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UnrecordedUseError(
            f"the parameter {self._name} is used by other functions than those of fedlm.models.layers.basic and "
            "fedlm.models.layers.parameter_uses"
        )


Parameter = jax.Array | Recorded


def constant(parameter: Parameter) -> jax.Array:
    """Read a parameter as a number through which no gradient passes; this is no use of it."""
    return jax.lax.stop_gradient(parameter.value if isinstance(parameter, Recorded) else parameter)


def multiply(x: jax.Array, kernel: Parameter) -> jax.Array:
    """Multiply float [..., inputs] by a matrix [inputs, outputs]."""
    if isinstance(kernel, Recorded):
        return kernel.recording.observe(kernel, "multiply", x, x @ kernel.value)
    return product(x, kernel)


def multiply_transposed(x: jax.Array, table: Parameter) -> jax.Array:
    """Multiply float [..., width] by the transpose of a matrix [rows, width]."""
    if isinstance(table, Recorded):
        return table.recording.observe(table, "multiply_transposed", x, x @ table.value.T)
    return x @ table.T


def look_up(table: Parameter, tokens: jax.Array) -> jax.Array:
    """Take rows of a matrix [rows, width] for int32 tokens [...]: float [..., width]."""
    if isinstance(table, Recorded):
        return table.recording.observe(table, "look_up", tokens, table.value[tokens])
    # The gradient of a row is a sum over its tokens, which are many for some: they are added up in float32.
    return table.astype(jnp.promote_types(table.dtype, jnp.float32))[tokens].astype(table.dtype)


def add(x: jax.Array, bias: Parameter) -> jax.Array:
    """Add a vector [width] to float [..., width]."""
    if isinstance(bias, Recorded):
        return bias.recording.observe(bias, "add", None, x + bias.value)
    return x + bias


def scale(x: jax.Array, factors: Parameter) -> jax.Array:
    """Multiply float [..., width] by a vector [width], entry by entry."""
    if isinstance(factors, Recorded):
        return factors.recording.observe(factors, "scale", x, x * factors.value)
    return x * factors


class RecordedRun(NamedTuple):
    """A function's result with all uses of its parameters.

    Attributes:
      result: what the function returned.
      uses: of the parameters.
      output_gradients: maps the gradient at `result` to that at each use's output, in the order of `uses`.
    """

    result: Any
    uses: list[Use]
    output_gradients: Callable[[Any], list[jax.Array]]


def record_uses(function: Callable[[Any, Any], Any], params: Any, batch: Any) -> RecordedRun:
    """Run a function of parameters and a batch, recording how it uses the parameters.

    Args:
      function: maps (params, batch) to a pytree of float arrays. It may depend on params by the functions of this
        module alone, and must treat examples independently of each other.
      params: pytree of float arrays.
      batch: pytree of arrays, all with the examples' axis first.

    Raises:
      UnrecordedUseError: a parameter is used in another way, or the first axis of a use is not that of the examples.
    """
    examples = jax.tree_util.tree_leaves(batch)[0].shape[0]
    found = uses_of(function, params, batch, examples)
    # One example more tells the axis of examples from another that happens to be as long.
    for count, uses in ((examples, found), (examples + 1, uses_of(function, params, batch, examples + 1))):
        if any(use.output.shape[:1] != (count,) for use in uses):
            raise UnrecordedUseError("the first axis of what comes out of a layer is not that of the examples")

    def run(taps: list[jax.Array]) -> tuple[Any, list[jax.Array | None]]:
        recording = Recording(taps)
        result = function(_stand_ins(params, recording), batch)
        return result, [use.inputs for use in recording.uses]

    taps = [jnp.zeros(use.output.shape, use.output.dtype) for use in found]
    result, pull_back, inputs = jax.vjp(run, taps, has_aux=True)
    uses = [use._replace(inputs=came_in) for use, came_in in zip(found, inputs, strict=True)]
    return RecordedRun(result, uses, lambda gradient: pull_back(gradient)[0])


def uses_of(function: Callable[[Any, Any], Any], params: Any, batch: Any, examples: int) -> list[Use]:
    """Find out how a function uses its parameters, of shapes alone and without inputs; see `record_uses`.

    Args:
      examples: how many to take a batch to have.

    Raises:
      UnrecordedUseError: a parameter is used in another way than by the functions of this module.
    """
    recording = Recording()
    sized = jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct((examples, *leaf.shape[1:]), leaf.dtype), batch)
    try:
        jax.eval_shape(lambda leaves, rows: function(_stand_ins(leaves, recording), rows), params, sized)
    except (TypeError, ValueError) as error:
        raise UnrecordedUseError(f"parameters cannot be followed through the model ({error})") from error
    return recording.uses


def _stand_ins(params: Any, recording: Recording) -> Any:
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    recorded = [
        Recorded(leaf, number, recording, jax.tree_util.keystr(path)) for number, (path, leaf) in enumerate(leaves)
    ]
    return jax.tree_util.tree_unflatten(structure, recorded)


@jax.custom_vjp
def with_tap(output: jax.Array, tap: jax.Array) -> jax.Array:
    """Pass an output on, so that differentiating by the tap, of `Recording.begin`, gives the gradient at the output."""
    return output


with_tap.defvjp(lambda output, tap: (output, None), lambda _, gradient: (gradient, gradient))
