"""From StableHLO to LiteRT's built-in operations.

Calls are inlined, loops with a fixed number of turns are unrolled, and whatever depends on constants alone is computed
here. A runtime cuts a graph without loops into few pieces. What a loop would keep for its derivative is a tensor like
others.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend.mlir import ir

from fedlm.fl_core.deployment.plans.litert.graph import Graph, Tensor
from fedlm.fl_core.deployment.plans.litert.operations import OPERATIONS
from fedlm.fl_core.deployment.plans.litert.reading import known_number, refusal
from fedlm.fl_core.deployment.plans.litert.values import AnyValue, Value, Values

_MOST_TURNS = 1 << 12


def lower(module: ir.Module, graph: Graph, arguments: Sequence[Tensor]) -> list[Tensor]:
    """Add the function `main` of a module to a graph.

    Args:
      module: of StableHLO, with fixed shapes.
      graph: to add to.
      arguments: what `main` is applied to.

    Returns:
      Its results.

    Raises:
      ConfigurationError: LiteRT's built-in operations do not make up for one of the module's.
    """
    functions = {ir.StringAttr(one.attributes["sym_name"]).value: one for one in module.body.operations}
    values = Values(graph)
    walk = _Walk(functions, values)
    return [values.whole(one) for one in walk.call("main", [Value(one, one.shape) for one in arguments])]


class _Walk:
    def __init__(self, functions: Mapping[str, Any], values: Values):
        self._functions, self._values = functions, values

    def call(self, name: str, arguments: Sequence[AnyValue]) -> list[AnyValue]:
        return self._run(self._functions[name].regions[0], arguments, {})

    def _run(self, region: Any, arguments: Sequence[AnyValue], outside: Mapping[Any, AnyValue]) -> list[AnyValue]:
        block = region.blocks[0]
        found = {**outside, **dict(zip(block.arguments, arguments, strict=True))}
        for operation in block.operations:
            operands = [found[one] for one in operation.operands]
            if operation.name in ("func.return", "stablehlo.return"):
                return operands
            found.update(zip(operation.results, self._apply(operation, operands, found), strict=True))
        raise ValueError("a block of StableHLO has no end")

    def _apply(self, operation: Any, operands: list[AnyValue], found: Mapping[Any, AnyValue]) -> Sequence[AnyValue]:
        name = operation.name.removeprefix("stablehlo.")
        if name == "func.call":
            return self.call(ir.FlatSymbolRefAttr(operation.attributes["callee"]).value, operands)
        if name == "optimization_barrier":
            return operands
        if name == "case":
            return self._run(self._branch(operation, operands[0]), [], found)
        if name == "while":
            return self._turns(operation, operands, found)
        if name not in OPERATIONS:
            raise refusal(name, "is not among those that are translated")
        return [OPERATIONS[name](self._values, operation, operands)]

    def _branch(self, operation: Any, index: AnyValue) -> Any:
        chosen = known_number(index)
        if chosen is None:
            raise refusal("case", "depends on data")
        branches = operation.regions
        return branches[int(chosen) if 0 <= chosen < len(branches) else len(branches) - 1]

    def _turns(self, operation: Any, state: Sequence[AnyValue], found: Mapping[Any, AnyValue]) -> Sequence[AnyValue]:
        condition, body = operation.regions
        for _ in range(_MOST_TURNS):
            (goes_on,) = self._run(condition, state, found)
            number = known_number(goes_on)
            if number is None:
                raise refusal("while", "turns as often as data says")
            if not number:
                return state
            state = self._run(body, state, found)
        raise refusal("while", f"turns more than {_MOST_TURNS:,} times")
