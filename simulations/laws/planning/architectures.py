"""Models of sizes between those that were measured: the same architecture with other numbers of layers and widths."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from fedlm.models.base import parameter_count
from fedlm.models.errors import ConfigurationError
from fedlm.models.model_files import describe_model
from fedlm.models.registry import find_entry
from fedlm.simulations.laws.surface.loss_surface import LossSurface

_SIZES = ("layers", "heads", "embedding", "mlp")


class Architecture(NamedTuple):
    """A model that can be built.

    Attributes:
      name: of a named model; None where it has none.
      description: of the model; see `fedlm.models.model_files`.
      parameters: all of them.
      vocabulary_size: with which they are counted.
    """

    name: str | None
    description: dict[str, Any]
    parameters: int
    vocabulary_size: int


def nearest_architecture(
    surface: LossSurface, parameters: float, vocabulary_size: int | None = None
) -> Architecture | None:
    """Find the model of the measured family whose size is nearest, on a logarithmic scale.

    The measured models count and, where all are of one architecture with layers and heads, those of layers and widths
    between the two measured sizes around it; heads keep their width, and the feed-forward layers their ratio to it.

    Args:
      surface: the measured laws, of which the models' names are known here.
      parameters: the size that is wanted.
      vocabulary_size: of the data; that of the measured models where None.

    Returns:
      None where the measured models are not known here.
    """
    try:
        entries = [find_entry(name) for name in surface.models]
    except ConfigurationError:
        return None
    known = vocabulary_size or _vocabulary(entries[0], surface.parameters[0])
    candidates: dict[tuple[Any, Any], str | None] = {
        (entry.build, _with_vocabulary(entry.config, known)): name
        for name, entry in zip(surface.models, entries, strict=True)
    }
    if _alike(entries):
        above = next((i for i, size in enumerate(surface.parameters) if size >= parameters), len(entries) - 1)
        ends = (_with_vocabulary(entry.config, known) for entry in (entries[max(above - 1, 0)], entries[above]))
        candidates = dict.fromkeys(((entries[0].build, config) for config in _between(*ends)), None) | candidates
    counted = {(build, config): parameter_count(build("candidate", config)) for build, config in candidates}
    low, high = surface.parameters[0], surface.parameters[-1]
    within = [candidate for candidate, size in counted.items() if low <= size <= high] or list(counted)
    best = min(within, key=lambda candidate: abs(math.log(counted[candidate] / parameters)))
    return Architecture(candidates[best], describe_model(*best), counted[best], known)


def _alike(entries: Sequence[Any]) -> bool:
    """Tell whether models differ in numbers of layers and widths alone."""
    return len({entry.build for entry in entries}) == 1 and all(
        hasattr(entry.config, name) for entry in entries for name in _SIZES
    )


def _between(small: Any, large: Any) -> list[Any]:
    """Configurations of the same heads and ratios, with layers and widths between those of two."""
    head = max(1, small.embedding // small.heads)
    ratio = small.mlp / small.embedding
    low, high = sorted((small.layers, large.layers))
    narrow, wide = sorted((small.embedding, large.embedding))
    return [
        dataclasses.replace(small, layers=layers, heads=width // head, embedding=width, mlp=round(ratio * width))
        for layers in range(low, high + 1)
        for width in range(-(-narrow // head) * head, wide + 1, head)
    ]


def _with_vocabulary(config: Any, vocabulary_size: int) -> Any:
    return dataclasses.replace(config, vocabulary_size=vocabulary_size)


def _vocabulary(entry: Any, parameters: float) -> int:
    """The vocabulary with which a measured model has its size, which is linear in it."""
    base, more = (
        parameter_count(entry.build("measured", _with_vocabulary(entry.config, size))) for size in (1000, 2000)
    )
    return max(1, round(1000 + 1000 * (parameters - base) / (more - base)))
