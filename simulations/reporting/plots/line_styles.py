"""The lines of a comparison's plots: which model has which colour, dash and marker."""

from collections.abc import Sequence
from typing import Any

from fedlm.models.registry import standard_twin
from fedlm.simulations.plot_style import FAMILIES, MARKERS


class LineStyle(dict[str, Any]):
    """Keyword arguments of a model's line: colour, dash and marker."""


def line_styles(models: Sequence[str]) -> dict[str, LineStyle]:
    """Choose lines for models by name: twins share a colour, the standard one is dashed.

    Families also differ in their markers, which tell them apart where colours repeat.
    """
    families = list(dict.fromkeys(standard_twin(model) or model for model in models))
    twins = {standard_twin(model) for model in models}
    styles = {}
    for model in models:
        family = families.index(standard_twin(model) or model)
        dash = (0, (4, 2)) if model in twins else "-"
        colour, marker = FAMILIES[family % len(FAMILIES)], MARKERS[family % len(MARKERS)]
        styles[model] = LineStyle(color=colour, linestyle=dash, marker=marker, linewidth=1.8)
    return styles
