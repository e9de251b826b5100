"""Low-rank adapters: products of narrow matrices beside those of a model whose own are frozen (Hu et al. 2021, "LoRA").

The matrix K [inputs, outputs] of a dense layer becomes `K + alpha / rank A B`, with A [inputs, rank] and B [rank,
outputs]. The adapters are all the parameters that the adapted model has, so that gradients, clipping, noise,
optimizers, compression and checkpoints are of them alone. As in Hugging Face's PEFT, A is drawn uniformly between plus
and minus `inputs^-1/2` (He et al. 2015, with the slope of the root of 5), B is zero at first, and dropout is applied to
what comes into A.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedlm.models.base import Model, Params
from fedlm.models.errors import ConfigurationError, setting
from fedlm.models.layers.dropout import kept
from fedlm.models.layers.parameter_uses import Parameter, UnrecordedUseError, multiply, uses_of
from fedlm.models.pickling import made_by

_KERNEL = "kernel"
LORA_A, LORA_B = "lora_a", "lora_b"
"""The names of A and B among an adapter's parameters."""
ADAPTER = "adapter"
"""The name under which a dense layer's parameters have its `Adapter`, while a model runs."""


@dataclass(frozen=True)
class LoraConfig:
    """Which adapters a model has.

    Attributes:
      rank: of the products.
      alpha: they are multiplied by `alpha / rank`.
      dropout: share of what comes into A that is dropped in training.
      matrices: names of the dense layers that have one, `query` for example; empty for all.
    """

    rank: int
    alpha: float
    dropout: float = 0.0
    matrices: tuple[str, ...] = ()

    @property
    def scale(self) -> float:
        """What products are multiplied by."""
        return self.alpha / self.rank


@dataclass(frozen=True)
class Adapter:
    """What is added to what a dense layer's matrix gives.

    Attributes:
      a: float [inputs, rank].
      b: float [rank, outputs].
      scale: `alpha / rank`.
      kept: of a shape [batch, ..., inputs] and a dtype makes what an input is multiplied by, 0 where it is dropped;
        None where nothing is.
    """

    a: Parameter
    b: Parameter
    scale: float
    kept: Callable[[tuple[int, ...], Any], jax.Array] | None = None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map float [batch, ..., inputs] to [batch, ..., outputs]."""
        if self.kept is not None:
            x = x * self.kept(x.shape, x.dtype)
        return self.scale * multiply(multiply(x, self.a), self.b)


def lora_model(base: Model, config: LoraConfig) -> Model:
    """Make of a model the one whose parameters are adapters of it: `{"lora_a": [inputs, rank], "lora_b": [rank,
    outputs]}` where the model has a dense layer.

    It needs the model's own parameters by `fedlm.models.base.given_frozen`.

    Raises:
      ConfigurationError: the model has no such matrix, or one that is too narrow for the rank, or that it uses in
        another way than by `fedlm.models.layers.basic.dense` or the layers of `fedlm.models.layers.recurrences`.
    """
    return made_by(_lora_model, base, config)


def _lora_model(base: Model, config: LoraConfig) -> Model:
    shapes = jax.eval_shape(base.init, jax.random.key(0))
    layout = _layout(base.name, shapes, config)

    def init(rng: jax.Array) -> Params:
        rngs = iter(jax.random.split(rng, len(list(_adapters(layout)))))
        return _drawn(layout, rngs)

    def given(frozen: Params) -> Model:
        def joined(adapters: Params, keys: jax.Array | None = None) -> Params:
            def adapted(layer: Params, a: Parameter, b: Parameter, place: int) -> Params:
                masks = None if keys is None or not config.dropout else kept(config.dropout, keys, place)
                return {**layer, ADAPTER: Adapter(a, b, config.scale, masks)}

            return _joined(frozen, adapters, adapted)

        return dataclasses.replace(
            base,
            init=init,
            decoder=None,
            with_dropout=None,
            apply=lambda adapters, tokens: base.apply(joined(adapters), tokens),
            loss=lambda adapters, batch: base.loss(joined(adapters, batch.dropout), batch),
        )

    model = dataclasses.replace(
        base, init=init, apply=_not_given, loss=_not_given, decoder=None, with_dropout=None, with_frozen=given
    )
    _check_used(model, shapes)
    return model


def merge(
    config: LoraConfig,
    frozen: Params,
    adapters: Params,
    product: Callable[[Any, Any], Any] = lambda a, b: jnp.matmul(a, b, precision="highest"),
) -> Params:
    """Add the adapters' products to a model's matrices, so that the model needs no adapters.

    Args:
      config: which adapters they are.
      frozen: the model's parameters.
      adapters: those of `lora_model`.
      product: multiplies A and B; the sum is rounded to the matrix's type.
    """

    def added(layer: Params, a: Any, b: Any, place: int) -> Params:
        kernel = layer[_KERNEL]
        return {**layer, _KERNEL: (kernel + config.scale * product(a, b)).astype(kernel.dtype)}

    return _joined(frozen, adapters, added)


def _not_given(*_: Any) -> Any:
    raise TypeError("a model with adapters needs the frozen parameters: fedlm.models.base.given_frozen")


def _layout(name: str, shapes: Params, config: LoraConfig) -> Params:
    """Lay out the adapters of parameters' shapes: shapes again."""
    known: set[str] = set()

    def within(node: Any, own: str) -> Any:
        if isinstance(node, dict) and len(getattr(node.get(_KERNEL), "shape", ())) == 2:
            known.add(own)
            if config.matrices and own not in config.matrices:
                return {}
            inputs, outputs = node[_KERNEL].shape
            if config.rank > min(inputs, outputs):
                raise ConfigurationError(
                    f"{setting('lora_rank')} is {config.rank}, but {own} of {name} is a matrix of {inputs} by "
                    f"{outputs}; give at most {min(inputs, outputs)}"
                )
            float32 = jnp.dtype("float32")
            return {
                LORA_A: jax.ShapeDtypeStruct((inputs, config.rank), float32),
                LORA_B: jax.ShapeDtypeStruct((config.rank, outputs), float32),
            }
        if isinstance(node, dict):
            found = {key: within(child, str(key)) for key, child in node.items()}
            return {key: child for key, child in found.items() if child}
        if type(node) in (list, tuple):
            children = [within(child, own) for child in node]
            return children if any(children) else {}
        return {}

    layout = within(shapes, "")
    if unknown := sorted(set(config.matrices) - known):
        raise ConfigurationError(
            f"{setting('lora_matrices')} names {', '.join(unknown)}, but {name} has "
            f"{', '.join(sorted(known)) or 'no dense layer'}"
        )
    if not layout:
        raise ConfigurationError(
            f"{name} has no dense layer, a dictionary with a matrix `kernel`, that could be adapted"
        )
    return layout


def _adapters(node: Any) -> Iterator[Any]:
    """Yield the parameters of each adapter, in the order of `_joined`."""
    if isinstance(node, dict) and LORA_A in node:
        yield node
    else:
        children = [node[key] for key in sorted(node)] if isinstance(node, dict) else node
        for child in children:
            yield from _adapters(child)


def _drawn(layout: Params, rngs: Iterator[jax.Array]) -> Params:
    if isinstance(layout, dict) and LORA_A in layout:
        a, b = layout[LORA_A], layout[LORA_B]
        limit = 1 / math.sqrt(a.shape[0])
        drawn = jax.random.uniform(next(rngs), a.shape, a.dtype, minval=-limit, maxval=limit)
        return {LORA_A: drawn, LORA_B: jnp.zeros(b.shape, b.dtype)}
    if isinstance(layout, dict):
        return {key: _drawn(layout[key], rngs) for key in sorted(layout)}
    return [_drawn(child, rngs) for child in layout]


def _joined(frozen: Params, adapters: Params, change: Callable[[Params, Any, Any, int], Params]) -> Params:
    """Put, in the place of each layer that has an adapter, what `change` makes of the layer, A, B and the adapter's
    number."""
    number = iter(range(len(list(_adapters(adapters)))))

    def within(node: Any, own: Any) -> Any:
        if isinstance(own, dict) and LORA_A in own:
            return change(node, own[LORA_A], own[LORA_B], next(number))
        if isinstance(own, dict):
            return {**node, **{key: within(node[key], own[key]) for key in sorted(own)}} if own else node
        return type(node)([within(child, adapter) for child, adapter in zip(node, own, strict=True)])

    return within(frozen, adapters)


def _check_used(model: Model, shapes: Params) -> None:
    """Refuse, as a ConfigurationError, a model in which an adapter would do nothing."""
    adapters = jax.eval_shape(model.init, jax.random.key(0))
    used: set[int] = set()

    def trace(frozen: Params) -> None:
        tokens = jax.ShapeDtypeStruct((2, 2), jnp.int32)
        used.update(use.parameter for use in uses_of(model.with_frozen(frozen).apply, adapters, tokens, 2))  # type: ignore[misc]

    try:
        jax.eval_shape(trace, shapes)
    except UnrecordedUseError as error:
        raise ConfigurationError(f"{model.name} cannot have adapters: {error}") from error
    paths = [jax.tree_util.keystr(path[:-1]) for path, _ in jax.tree_util.tree_leaves_with_path(adapters)]
    if unused := [path for number, path in enumerate(paths) if number not in used]:
        raise ConfigurationError(
            f"{model.name} does not use its matrix {unused[0]} by fedlm.models.layers.basic.dense, so an adapter "
            f"would do nothing there; name others in {setting('lora_matrices')}"
        )
