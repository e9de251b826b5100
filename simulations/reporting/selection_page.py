"""The page of a private selection: the run that was chosen, and nothing of the others."""

from pathlib import Path

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.simulations.comparisons.private_selection import SCORE, Selection
from fedlm.simulations.experiments.configuration import Comparison
from fedlm.simulations.reporting.formatting import DASH, format_percent, format_perplexity
from fedlm.simulations.reporting.pages import page_template
from fedlm.simulations.reporting.tables import setting_rows


def write_selection_page(comparison: Comparison, selection: Selection, out: Path, command: str) -> Path:
    """Write report.html into a selection's folder.

    It has what was fixed beforehand, the settings and scores of the run that was chosen, and what is stated of it; not
    how many runs there were, nor anything of the others, nor what was counted in any. Returns its path.
    """
    path, law = out / "report.html", comparison.selection.law()
    assert law is not None
    page = page_template("selection.html").render(
        stated=selection.statement,
        law=law.words(),
        candidates=len(comparison.candidates()),
        comparison=comparison,
        score=SCORE,
        chosen=_chosen_rows(selection),
        settings=setting_rows(comparison),
        command=command,
    )
    write_atomically(path, page)
    return path


def _chosen_rows(selection: Selection) -> list[tuple[str, str]]:
    if selection.chosen is None:
        return []
    experiment, summary = selection.chosen.cell.experiment, selection.chosen.summary
    scores = [
        (f"{split} {name}", form(summary.get(f"{prefix}_{name}")))
        for split, prefix in (("held-out", "heldout"), ("test", "test"))
        for name, form in (("perplexity", format_perplexity), ("accuracy", format_percent))
    ]
    rates = (experiment.client_learning_rate, experiment.server_learning_rate)
    return [
        ("model", experiment.model),
        *zip(("client learning rate", "server learning rate"), (f"{rate:g}" for rate in rates), strict=True),
        *((name, value or DASH) for name, value in scores),
    ]
