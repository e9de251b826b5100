"""Private selections as they run: what is drawn once, what is chosen, and what is said of it."""

import contextlib
import functools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fedlm.commands import account as account_command
from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import CheckpointError, ConfigurationError
from fedlm.fl_core.privacy.accounting.composition import epsilon_bounds
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.fl_core.privacy.accounting.release_events import GaussianEvent
from fedlm.fl_core.privacy.promise.selection.number_of_trials import TrialsLaw
from fedlm.fl_core.privacy.promise.selection.private_selection import SelectionEvent, composed_above
from fedlm.fl_core.privacy.record.ledger import LedgerError, PrivacyLedger, Release
from fedlm.fl_core.runs.recorded_runs import find_runs
from fedlm.fl_core.runs.statements.publishing import publish
from fedlm.fl_core.runs.statements.statement_check import check_statement
from fedlm.fl_core.runs.statements.statement_reading import read_statement
from fedlm.simulations.comparisons import private_selection
from fedlm.simulations.comparisons.cell_execution import LocalProcesses
from fedlm.simulations.comparisons.private_selection import run_selection
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.in_memory import InMemoryText
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.experiments.configuration import Comparison
from fedlm.simulations.experiments.experiment import run_experiment
from fedlm.simulations.experiments.tuning import ComparedWith
from fedlm.simulations.reporting.selection_page import write_selection_page
from tests.simulations.reporting.html_page import Page
from tests.support.plain_runs import MODEL, PRIVATE, run

pytestmark = pytest.mark.usefixtures("plain_cohorts")

LAW = TrialsLaw("truncated_negative_binomial", 6.0, 0.5)
DELTA = PRIVATE["delta"]
TRIALS = 3
RUN = {name: value for name, value in PRIVATE.items() if name != "model"}
CHOICE = {"private_selection": LAW.distribution, "expected_trials": LAW.expected_trials, "selection_eta": LAW.eta}


def comparison(store, **changes):
    grid = {"models": (MODEL,), "client_learning_rates": (0.1, 0.5), "server_learning_rates": (0.01, 0.1)}
    return compose(Comparison, data=store, **RUN | grid | CHOICE | changes)


def in_this_process(cells, workers, observe):
    for cell in cells:
        if not (cell.directory / "summary.json").exists():
            see = functools.partial(observe, cell)
            run_experiment(
                cell.experiment,
                cell.directory,
                lambda row, rounds, see=see: see(row),
                brought=[ComparedWith(cell.tuning)],
            )
    return {}


@contextlib.contextmanager
def not_run():
    """No run is trained, and none is over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private_selection, "run_cells", lambda cells, *_: {cells[0]: "not run"})
        yield


@pytest.fixture(scope="module")
def here(plain_cohorts):
    """Runs are trained in this process, and their number is known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private_selection, "run_cells", in_this_process)
        patch.setattr(TrialsLaw, "draw", lambda self: TRIALS)
        yield patch


@pytest.fixture(scope="module")
def selected(here, small_store, tmp_path_factory):
    out = tmp_path_factory.mktemp("selected") / "out"
    settings = comparison(small_store)
    said = []
    selection = run_selection(settings, out, LocalProcesses(1), said.append)
    assert [stated.sentence() for stated in said] == [selection.statement.sentence()]
    write_selection_page(settings, selection, out, "fedlm compare")
    return out, selection


def spent(law=LAW, noise=4.0):
    return composed_above([SelectionEvent((GaussianEvent(noise),), law)], DELTA)


def terms_of(folder, capsys):
    assert account_command.COMMAND.main(["ledger", str(folder), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def trials_in(out):
    return sorted((out / "trials").iterdir())


def test_the_best_alone_is_promised_anything(selected, capsys):
    out, selection = selected
    losses = {path: json.loads((path / "summary.json").read_text())["heldout_loss"] for path in trials_in(out)}
    assert len(losses) == TRIALS
    best = (out / "chosen").resolve()
    assert losses[best] == min(losses.values())
    one = epsilon_bounds([GaussianEvent(4.0)], DELTA).upper
    assert one < spent() < TRIALS * one
    for path in (*losses, out / "chosen"):
        summary, found = json.loads((path / "summary.json").read_text()), terms_of(path, capsys)
        if path.resolve() == best:
            assert found["epsilon"] == summary["privacy_guarantee"]["epsilon"] == spent()
            assert (found["rho"], found["epsilon_lower"]) == (None, pytest.approx(one))
            assert LAW.words() in summary["privacy"]
        else:
            assert (found["epsilon"], summary["privacy_guarantee"]) == (None, None)
            assert "covers only the chosen trial" in found["not_private"]
            assert "epsilon" not in summary["privacy"]
    assert selection.chosen.summary["privacy_guarantee"]["epsilon"] == spent()
    assert selection.statement.total.epsilon == spent()


def test_nothing_gives_the_best_of_several_the_epsilon_of_one(selected, tmp_path, capsys):
    out, selection = selected
    one, all_in = (rounded_up(value) for value in (epsilon_bounds([GaussianEvent(4.0)], DELTA).upper, spent()))
    texts = {
        "page": Page((out / "report.html").read_text()).text,
        "sentence": selection.chosen.summary["privacy"],
        "list": "\n".join(run.privacy for run in find_runs(out)),
    }
    published = publish(out / "chosen", tmp_path / "public", lambda path: "", None)
    assert published.private
    texts["release"] = (tmp_path / "public" / "statement.html").read_text()
    for name, text in texts.items():
        assert all_in in text, name
        assert f"epsilon = {one}" not in text, name
        assert f"epsilon {one}" not in text, name
    record = read_statement(tmp_path / "public" / "statement.json")
    assert record["guarantee_of_this_run_alone"] is None
    assert check_statement(record).findings == ()
    for path in trials_in(out):
        if path != (out / "chosen").resolve():
            assert not publish(path, tmp_path / path.name, lambda path: "", None).private


def test_the_page_tells_nothing_of_the_others(selected, small_store, tmp_path):
    """It follows from the scores and settings of the run that was chosen: no folder is read, and nothing counted."""
    out, selection = selected
    scores = {name: value for name, value in selection.chosen.summary.items() if name.startswith(("heldout_", "test_"))}
    cell = replace(selection.chosen.cell, directory=tmp_path / "none")
    alone = selection._replace(chosen=replace(selection.chosen, cell=cell, summary=scores, rows=[]))
    page = write_selection_page(comparison(small_store), alone, tmp_path, "fedlm compare").read_text()
    assert page == (out / "report.html").read_text()
    text = Page(page).text
    for told in (MODEL, "4 candidates", f"{scores['heldout_perplexity']:.1f}"):
        assert told in text
    for kept in ("trials/", "000", f"{TRIALS} runs", f"{TRIALS} trials"):
        assert kept not in text
    assert out.stat().st_mode & 0o77 == 0
    assert not list(out.glob("*.csv"))


def test_what_was_drawn_is_kept_and_no_run_that_was_seen_is_drawn_again(here, small_store, tmp_path, monkeypatch):
    out, settings, beside = tmp_path / "out", comparison(small_store), tmp_path / "beside"

    def killed_after_one(cells, workers, observe):
        in_this_process(cells[:1], workers, observe)
        raise KeyboardInterrupt

    monkeypatch.setattr(private_selection, "run_cells", killed_after_one)
    with pytest.raises(KeyboardInterrupt):
        run_selection(settings, out, LocalProcesses(1))
    record = out / "privacy" / "selection.jsonl"
    assert record.stat().st_mode & 0o77 == 0
    before = record.read_text()
    assert not (out / "chosen").exists()
    monkeypatch.setattr(TrialsLaw, "draw", lambda self: pytest.fail("the number of trials was drawn again"))
    monkeypatch.setattr(private_selection, "run_cells", lambda *_: pytest.fail("went on"))
    for name, left_empty, message in (
        ("000", False, "000: a run of this private selection is missing. A run that was seen is not drawn again"),
        (f"{TRIALS - 1:03d}", False, "a run of this private selection is missing"),
        ("000", True, "000: its ledger is missing, or is not the one that this private selection has seen"),
    ):
        folder = (out / "trials" / name).rename(beside)
        if left_empty:
            (out / "trials" / name).mkdir()
        with pytest.raises(CheckpointError, match=message):
            run_selection(settings, out, LocalProcesses(1))
        shutil.rmtree(out / "trials" / name, ignore_errors=True)
        folder.rename(out / "trials" / name)
    monkeypatch.setattr(private_selection, "run_cells", lambda cells, *_: {cells[1]: "out of memory"})
    with pytest.raises(CheckpointError, match=r"out of memory.*chooses nothing before all its runs are over"):
        run_selection(settings, out, LocalProcesses(1))
    assert record.read_text() == before
    monkeypatch.setattr(private_selection, "run_cells", in_this_process)
    first = run_selection(settings, out, LocalProcesses(1))
    assert record.read_text().startswith(before)
    # Over, it is found again as it was; nothing is trained, and nothing chosen again.
    (first.chosen.cell.directory / "summary.json").touch()
    after = {path: path.read_bytes() for path in out.rglob("*.jsonl")}
    assert run_selection(settings, out, LocalProcesses(1)).chosen.cell.directory == first.chosen.cell.directory
    assert {path: path.read_bytes() for path in out.rglob("*.jsonl")} == after
    with pytest.raises(CheckpointError, match="holds a comparison with other settings: client_learning_rates"):
        run_selection(comparison(small_store, client_learning_rates=(0.1,)), out, LocalProcesses(1))
    record.unlink()
    with pytest.raises(LedgerError, match="is missing, but there are runs"):
        run_selection(settings, out, LocalProcesses(1))


def test_a_selection_that_was_interrupted_while_it_was_drawn_is_drawn(here, small_store, tmp_path):
    (tmp_path / "out" / "trials" / "007").mkdir(parents=True)
    assert run_selection(comparison(small_store), tmp_path / "out", LocalProcesses(1)).chosen is not None
    assert len(trials_in(tmp_path / "out")) == TRIALS


def test_what_runs_are_drawn_from_stays_whatever_becomes_of_the_settings_beside_them(here, small_store, tmp_path):
    """Candidates that were put in when some runs were over could be chosen by looking at those."""
    out = tmp_path / "out"
    for change in ({}, {"client_learning_rates": (0.1, 0.4)}, {"expected_trials": 2.0}):
        said = []
        message = f"began with other settings: {next(iter(change))} was" if change else "not run"
        with not_run(), pytest.raises(CheckpointError, match=message):
            run_selection(comparison(small_store, **change), out, LocalProcesses(1), said.append)
        assert bool(said) == (not change)
        (out / "comparison.json").unlink()
    with not_run(), pytest.raises(CheckpointError, match="not run"):
        run_selection(comparison(small_store), out, LocalProcesses(1))


def test_a_run_from_elsewhere_is_not_chosen(here, small_store, tmp_path, monkeypatch):
    def replaced(cells, workers, observe):
        run(PRIVATE, cells[0].directory, data=small_store)
        return {}

    monkeypatch.setattr(TrialsLaw, "draw", lambda self: 1)
    monkeypatch.setattr(private_selection, "run_cells", replaced)
    with pytest.raises(CheckpointError, match="is not a run of this selection"):
        run_selection(comparison(small_store), tmp_path / "out", LocalProcesses(1))


def test_all_runs_begin_with_the_same_parameters(here, small_store, tmp_path, monkeypatch):
    """The choice tells of all that were chosen from, of which the statement of the best names what it began with."""
    for name, noise in (("loud", 4.0), ("quiet", 0.5)):
        run(PRIVATE, tmp_path / name, data=small_store, noise_multiplier=noise)
    parent, out = tmp_path / "parent", tmp_path / "out"
    settings = comparison(small_store, init_from=parent)
    shutil.copytree(tmp_path / "quiet", parent)

    def other_parent(cells, workers, observe):
        in_this_process(cells[:1], workers, observe)
        shutil.rmtree(parent)
        shutil.copytree(tmp_path / "loud", parent)
        in_this_process(cells, workers, observe)
        return {}

    for run_cells, message in (
        (other_parent, "001: has other first parameters, first parameters that"),
        (lambda *_: pytest.fail("went on"), "was begun with other first parameters"),
    ):
        monkeypatch.setattr(private_selection, "run_cells", run_cells)
        with pytest.raises(CheckpointError, match=message):
            run_selection(settings, out, LocalProcesses(1))


def test_parameters_of_another_split_of_the_same_source_promise_nothing(here, small_store, tmp_path, monkeypatch):
    """Its training clients are among those whose text the choice is made by."""
    store, other = TokenStore.open(small_store), tmp_path / "other"
    names = [name for split in ("train", "heldout", "test") for name in store.split(split).client_ids]
    texts = [ClientText(name, ["a text of its own", f"of {name}"]) for name in names]
    settings = ImportSettings(vocabulary=small_store / "tokenizer.json", seed=1)
    import_text("made up", InMemoryText(texts), other, settings, workers=1)
    trained = set(TokenStore.open(other).split("train").client_ids)
    assert not trained.isdisjoint(store.split("heldout").client_ids)
    run(PRIVATE, tmp_path / "parent", data=other)
    monkeypatch.setattr(TrialsLaw, "draw", lambda self: 1)
    said, chosen_from = [], comparison(small_store, init_from=tmp_path / "parent")
    found = run_selection(chosen_from, tmp_path / "out", LocalProcesses(1), said.append)
    for stated in (*said, found.statement):
        assert stated.total is None
        assert "held-out people decided the choice" in stated.sentence()
    assert found.chosen.summary["privacy_guarantee"] is None


def test_a_run_that_takes_the_place_of_the_chosen_one_is_not_stated(selected, small_store, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(selected[0], out, symlinks=True)
    shutil.rmtree((out / "chosen").resolve())
    with pytest.raises(CheckpointError, match="is not the run that was chosen"):
        run_selection(comparison(small_store), out, LocalProcesses(1))


def test_two_outcomes_of_one_selection_are_not_composed(here, small_store, tmp_path, capsys):
    settings, one, other = comparison(small_store), tmp_path / "one", tmp_path / "other"
    with not_run(), pytest.raises(CheckpointError, match="not run"):
        run_selection(settings, one, LocalProcesses(1))
    shutil.copytree(one, other, symlinks=True)
    for out in (one, other):
        run_selection(settings, out, LocalProcesses(1))
    assert account_command.COMMAND.main(["ledger", str(one / "chosen"), str(other / "chosen"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["epsilon"] is None
    assert "but it covers only one run" in said["not_private"]


def test_a_target_is_reached_with_the_choice(here, small_store, tmp_path, monkeypatch):
    monkeypatch.setattr(TrialsLaw, "draw", lambda self: 1)
    target = {"noise_multiplier": None, "target_epsilon": 3.0}
    found = run_selection(comparison(small_store, **target), tmp_path / "out", LocalProcesses(1))
    assert 2.98 < found.statement.total.epsilon <= 3.0
    assert found.chosen.summary["privacy_guarantee"]["epsilon"] == found.statement.total.epsilon
    assert found.statement.own.epsilon < 2.5


def test_poisson_may_choose_nothing(here, small_store, tmp_path, monkeypatch):
    monkeypatch.setattr(TrialsLaw, "draw", lambda self: 0)
    settings = comparison(small_store, private_selection="poisson", expected_trials=3.0, selection_eta=1.0)
    found = run_selection(settings, tmp_path / "out", LocalProcesses(1))
    assert found.chosen is None
    assert found.statement.total.epsilon == spent(TrialsLaw("poisson", 3.0))
    text = Page(write_selection_page(settings, found, tmp_path, "fedlm compare").read_text()).text
    assert "Nothing: no run was drawn" in text


def test_what_begins_with_the_outcome_is_composed_with_the_choice(selected, small_store, tmp_path):
    out, _ = selected
    child = run(PRIVATE, tmp_path / "child", data=small_store, init_from=out / "chosen")
    both = composed_above([SelectionEvent((GaussianEvent(4.0),), LAW), GaussianEvent(4.0)], DELTA)
    assert child["privacy_guarantee"]["epsilon"] == both > spent()
    assert child["privacy_guarantee"]["rho"] is None
    assert (
        f"composed with 1 releases of gaussian noise, multiplier 4, of `fedlm simulate` in {out}/chosen"
        in (child["privacy"])
    )
    other = next(path for path in trials_in(out) if path != (out / "chosen").resolve())
    lost = run(PRIVATE, tmp_path / "lost", data=small_store, init_from=other)
    assert lost["privacy_guarantee"] is None
    assert "covers only the chosen trial" in lost["privacy"]


def test_a_choice_is_the_last_that_a_ledger_says(selected):
    out, _ = selected
    ledger = PrivacyLedger(out / "chosen" / "privacy" / "ledger.jsonl")
    before = len(ledger.records)
    ledger.choose()
    assert (ledger.chosen, len(ledger.records)) == (True, before)
    with pytest.raises(LedgerError, match="cannot follow 'chosen'"):
        ledger.intend(Release(99, "digest"))


def test_trials_are_independent_draws_of_candidates(here, small_store, tmp_path, monkeypatch):
    """Candidates of 100 draws among 4, by chi-squared; it fails of itself with probability 1e-6."""
    import scipy.stats

    monkeypatch.setattr(TrialsLaw, "draw", lambda self: 100)
    with not_run(), pytest.raises(CheckpointError, match="not run"):
        run_selection(comparison(small_store), tmp_path / "out", LocalProcesses(1))
    trials = json.loads((tmp_path / "out" / "privacy" / "selection.jsonl").read_text())["trials"]
    counts = [sum(candidate == number for candidate, _ in trials) for number in range(4)]
    assert scipy.stats.chisquare(counts).pvalue > 1e-6
    # Two of 100 seeds of 31 bits are equal with probability 3e-6.
    assert len({seed for _, seed in trials}) == 100


def test_heldout_people_who_train_and_a_budget_are_refused(here, small_store, tmp_path, monkeypatch):
    shutil.copytree(small_store, tmp_path / "data")
    (tmp_path / "data" / "privacy-budget.jsonl").write_text("")
    with pytest.raises(ConfigurationError, match="cannot reserve from the privacy budget"):
        run_selection(comparison(tmp_path / "data"), tmp_path / "out", LocalProcesses(1))
    train = private_selection.TokenStore.open(small_store).split("train")
    monkeypatch.setattr(private_selection.TokenStore, "split", lambda self, name: train)
    with pytest.raises(ConfigurationError, match="some held-out clients are training clients too"):
        run_selection(comparison(small_store), tmp_path / "out", LocalProcesses(1))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seeds": (3, 4)}, "seeds is .3, 4.*each with a seed of its own; leave seeds out"),
        ({"mechanisms": ("gaussian", "tree"), "privacy": "none"}, "mechanisms is .*runs of one privacy"),
        ({"epsilons": (5.0,), "noise_multiplier": None}, "epsilons is .5.0,., but a private selection"),
        ({"noise_seed": "experiment"}, "private_selection needs runs that are private"),
        ({"noise_multiplier": None, "target_rho": 0.5}, "target_rho does not express a private selection"),
        ({"audit_canaries": 4}, "audit_canaries: an audit is of one run"),
        ({"private_selection": "poisson"}, "selection_eta is 0.5, which does nothing with private_selection poisson"),
        (
            {"private_selection": "none", "selection_eta": 1.0},
            "expected_trials is 6.0, which does nothing with private_selection none",
        ),
        ({"expected_trials": 1.0}, "expected_trials is 1.0, but must lie above 1"),
        ({"private_selection": "best"}, "private_selection is 'best', but must be one of none, poisson, truncated"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_do(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        comparison(Path("corpus"), **settings)
