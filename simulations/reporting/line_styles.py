"""The lines of a comparison's plots: which model has which colour, dash and marker."""

from collections.abc import Sequence
from typing import Any

from fedlm.models.registry import standard_twin
from fedlm.simulations.plot_style import FAMILIES, MARKERS
from fedlm.simulations.reporting.selection import ModelResult


class LineStyle(dict[str, Any]):
    """Keyword arguments of a model's line: colour, dash and marker."""


def line_styles(models: Sequence[ModelResult]) -> dict[str, LineStyle]:
    """Choose lines for models by name: twins share a colour, the standard one is dashed.

    Families also differ in their markers, which tell them apart where colours repeat.
    """
    families = list(dict.fromkeys(standard_twin(entry.model) or entry.model for entry in models))
    twins = {entry.twin for entry in models}
    styles = {}
    for entry in models:
        family = families.index(standard_twin(entry.model) or entry.model)
        dash = (0, (4, 2)) if entry.model in twins else "-"
        colour, marker = FAMILIES[family % len(FAMILIES)], MARKERS[family % len(MARKERS)]
        styles[entry.model] = LineStyle(color=colour, linestyle=dash, marker=marker, linewidth=1.8)
    return styles
