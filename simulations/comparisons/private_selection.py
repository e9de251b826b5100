"""Private selection: the best of a secret random number of private runs (Papernot and Steinke 2022, "Hyperparameter
tuning with Renyi differential privacy").

How many runs there are, and which, is drawn once, and on disk before the first of them begins: a selection that was
interrupted goes on with the same ones. The best alone is covered, by what its own ledger says of the choice; until a
run is chosen, and where it is not, its ledger says NOT PRIVATE. All runs begin with what the first would have begun
with: what was known of data and first parameters is drawn up with them, and a run with others is none of theirs.
"""

import json
import math
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedlm.fl_core.atomic_files import make_folder, write_atomically
from fedlm.fl_core.composed_settings import idle_names, settings_as_json, with_changes
from fedlm.fl_core.errors import CheckpointError, ConfigurationError, setting
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.privacy.origins.ancestry import BUDGET_FILE, TUNING_FIELD
from fedlm.fl_core.privacy.origins.relevance_origin import RELEVANCE_FIELD
from fedlm.fl_core.privacy.origins.vocabulary_origin import ORIGIN_FIELD
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.promise.selection.number_of_trials import TrialsLaw
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.record.record_chain import Record
from fedlm.fl_core.privacy.settings import PRIVACY_FOLDER
from fedlm.fl_core.privacy.statement import Statement, state_plan
from fedlm.fl_core.runs.files.private_files import keep_private
from fedlm.fl_core.runs.files.run_lock import run_lock
from fedlm.fl_core.runs.identity import SUMMARY_FILE, TRAINING_DATA
from fedlm.fl_core.runs.outcome import ledger_in, restated, statement_in
from fedlm.simulations.comparisons.cell_execution import LocalProcesses, run_cells
from fedlm.simulations.comparisons.cells import Cell, CellResult, read_result
from fedlm.simulations.comparisons.comparison import changed_settings, claim_folder
from fedlm.simulations.comparisons.selection_record import SelectionRecord, ledger_path
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.experiments.configuration import Comparison
from fedlm.simulations.experiments.preparation import prepare
from fedlm.simulations.experiments.tuning import ComparedWith

SCORE = "the loss on held-out clients of its last model"
CHOSEN = "chosen"
_SEEDS = 2**31


class Selection(NamedTuple):
    """The outcome of a private selection."""

    statement: Statement  # of the run that was chosen; of whichever would have been where none was
    chosen: CellResult | None  # None where no run was drawn, or none of them has a held-out loss


def run_selection(
    comparison: Comparison,
    out: Path,
    executor: LocalProcesses = LocalProcesses(),  # noqa: B008
    announce: Callable[[Statement], None] = lambda stated: None,
) -> Selection:
    """Train the runs of a private selection that are not finished yet, and choose the best.

    Args:
      comparison: whose models and learning rates the runs are drawn from.
      out: folder of the selection, in which it goes on where it was; the run that was chosen is at `chosen` in it.
      executor: how many runs are trained at the same time, and with how many cores each.
      announce: called with what will be stated of the run that is chosen, before any is trained.

    Raises:
      UserError: settings or data do not fit, `out` holds something else, or a run failed, so that nothing is chosen.

    Example:
      >>> import fedlm
      >>> private = {"privacy": "gaussian", "target_epsilon": 8.0, "cohort_sampler": "min_separation"}
      >>> private |= {"update_clip_norm": 0.5, "private_selection": "truncated_negative_binomial"}
      >>> comparison = fedlm.compose(fedlm.Comparison, models=("cifg_tiny",), data=Path("runs/stdlib"), **private)
      >>> run_selection(comparison, Path("runs/selected"), fedlm.LocalProcesses(2))  # doctest: +SKIP
    """
    law = comparison.selection.law()
    assert law is not None
    store = TokenStore.open(comparison.data)
    _check_data(store)
    candidates = comparison.candidates()
    settings = settings_as_json(comparison)
    planned, beginning = _plan(candidates[0], law)
    claim_folder(comparison, out)
    make_folder(out / PRIVACY_FOLDER, private=True)
    keep_private(out)
    with run_lock(out):
        record = SelectionRecord(out)
        drawn, idle = record.drawn, idle_names(comparison)
        if drawn is not None and (changed := changed_settings(drawn.get("settings", settings), settings, idle)):
            raise CheckpointError(
                f"{out}: the private selection began with other settings: {changed}. It cannot change what it draws "
                f"runs from; give the settings that it began with, or another {setting('out')}"
            )
        announce(planned)
        if drawn is None:
            count = law.draw()
            trials = [[secrets.randbelow(len(candidates)), secrets.randbelow(_SEEDS)] for _ in range(count)]
            about = law.as_json() | {"candidates": len(candidates), "id": secrets.token_hex(16)}
            content = {"selection": about, "trials": trials, "beginning": beginning, "settings": settings}
            drawn = record.draw(count, content)
            keep_private(out)
        cells = [
            Cell(
                with_changes(candidates[candidate], seed=seed),
                record.folder(number),
                {"selection": drawn["selection"]},
            )
            for number, (candidate, seed) in enumerate(drawn["trials"])
        ]
        found = record.chosen
        if found is None:
            if drawn["beginning"] != beginning:
                raise CheckpointError(
                    f"{out}: the private selection was begun with {_difference(drawn['beginning'], beginning)}; give "
                    f"what it was begun with, or another {setting('out')}"
                )
            found = record.choose(_train_and_find(cells, drawn, record, executor))
        place = found["trial"]
        keep_private(out)
        if place is None:
            return Selection(planned, None)
        _check_chosen(cells[place], found)
        chosen = _choose(cells[place], out / CHOSEN)
    stated = statement_in(chosen.cell.directory)
    assert stated is not None
    return Selection(stated, chosen)


def _train_and_find(cells: list[Cell], drawn: Record, record: SelectionRecord, executor: LocalProcesses) -> Record:
    """Train what is left of the runs, and find the best of all. What was seen of one is on record from then on."""
    numbers, begun = {cell: number for number, cell in enumerate(cells)}, set()

    def observe(cell: Cell, row: dict[str, Any]) -> None:
        if cell not in begun or row["round"] + 1 == cell.experiment.rounds:
            begun.add(cell)
            record.see(numbers[cell])

    record.check(len(cells))
    failures = run_cells(cells, executor, observe)
    record.check(len(cells))
    if failures:
        places = ", ".join(f"{cell.directory} ({why})" for cell, why in failures.items())
        raise CheckpointError(
            f"{places}: failed, and a private selection chooses nothing before all its runs are over; mend what "
            "made them fail, and give the same command again"
        )
    _check_alike(cells, drawn)
    best = _best([read_result(cell) for cell in cells])
    if best is None:
        return {"trial": None, "ledger": None}
    return {"trial": cells.index(best.cell), "ledger": PrivacyLedger(ledger_path(best.cell.directory)).hashes[0]}


def _check_data(store: TokenStore) -> None:
    """Refuse data whose people, or budget, the statement of a selection would not cover."""
    if not set(store.split("train").client_ids).isdisjoint(store.split("heldout").client_ids):
        raise ConfigurationError(
            f"{store.path}: some held-out clients are training clients too, and choosing by their loss would reveal "
            "their text without any noise; a private selection needs held-out clients who are other people"
        )
    if (store.path / BUDGET_FILE).exists():
        raise ConfigurationError(
            f"{store.path}: a private selection cannot reserve from the privacy budget that the data set has; "
            f"compare without {setting('private_selection')}, or take another data set"
        )


def _plan(experiment: Any, law: TrialsLaw) -> tuple[Statement, Record]:
    """State what any run of the selection will spend where it is chosen, and write down what all begin with."""
    prepared = prepare(experiment, [ComparedWith({"selection": law.as_json(), "chosen": True})])
    privacy = prepared.privacy
    assert privacy is not None
    plan, about = privacy.plan().plan, prepared.identity.about()
    return state_plan(plan, prepared.delta, about), _beginning(plan, prepared.delta, about)


def _beginning(plan: PrivacyPlan, delta: float, about: Mapping[str, Any]) -> Record:
    """Take of what ledgers say of runs what is the same for all runs of a selection, JSON-able."""
    ancestry = [{**phase, "folder": None} for phase in about.get("ancestry", [])]
    said = {name: value for name, value in about.items() if name not in ("experiment", TUNING_FIELD)}
    return dict(json.loads(json.dumps({"plan": plan.as_json(), "delta": delta, **said, "ancestry": ancestry})))


_WORDS = {
    "plan": "another privacy plan",
    "delta": "another delta",
    "vocabulary": "another vocabulary",
    ORIGIN_FIELD: "a vocabulary of another origin",
    RELEVANCE_FIELD: "relevances of tokens of another origin",
    TRAINING_DATA: "other training data",
    "ancestry": "first parameters that have gone through something else",
    "initial_parameters_sha256": "other first parameters",
}


def _difference(one: Record, other: Record) -> str:
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return ", ".join(_WORDS.get(name, f"another {name}") for name in names)


def _check_alike(cells: list[Cell], drawn: Record) -> None:
    """Refuse runs that are not draws of one distribution: of another selection, with another plan, other data, or other
    first parameters.

    Raises:
      CheckpointError: there is one.
    """
    for cell in cells:
        ledger = PrivacyLedger(ledger_path(cell.directory))
        about = ledger.about
        if about.get(TUNING_FIELD, {}).get("selection") != drawn["selection"]:
            raise CheckpointError(f"{cell.directory}: is not a run of this selection; put back the one that was there")
        found = _beginning(ledger.plan, ledger.delta, about)
        if found != drawn["beginning"]:
            raise CheckpointError(
                f"{cell.directory}: has {_difference(found, drawn['beginning'])} than the selection began with, so "
                f"nothing is known of the best; begin another {setting('out')}"
            )


def _check_chosen(cell: Cell, record: Record) -> None:
    """Refuse another run in the place of that which was chosen. Raises CheckpointError."""
    ledger = ledger_in(cell.directory)
    if ledger is None or ledger.hashes[0] != record["ledger"]:
        raise CheckpointError(f"{cell.directory}: is not the run that was chosen; put back the one that was there")


def _best(results: list[CellResult]) -> CellResult | None:
    """Find the run with the lowest held-out loss, of equal ones that whose parameters' digest comes first; None where
    none has one."""

    def rank(result: CellResult) -> tuple[float, str]:
        loss = result.summary.get("heldout_loss")
        return math.inf if loss is None or math.isnan(loss) else loss, result.summary["parameters_sha256"]

    best = min(results, key=rank, default=None)
    return best if best is not None and math.isfinite(rank(best)[0]) else None


def _choose(cell: Cell, link: Path) -> CellResult:
    """Enter the choice into the run's ledger, and what it promises now into its summary; and link to it."""
    with run_lock(cell.directory):
        PrivacyLedger(ledger_path(cell.directory)).choose()
        path = cell.directory / SUMMARY_FILE
        summary = restated(json.loads(path.read_text(encoding="utf-8")), cell.directory)
        write_atomically(path, json_text(summary, indent=2) + "\n", private=True)
    beside = link.with_name(link.name + ".partial")
    beside.unlink(missing_ok=True)
    # By its own name it would tell how many runs there were at least.
    beside.symlink_to(cell.directory.relative_to(link.parent))
    beside.replace(link)
    return read_result(cell)
