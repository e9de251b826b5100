"""Learning rates that a comparison selects by successive halving."""

import math
from collections import Counter
from pathlib import Path

import pytest

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import CheckpointError, ConfigurationError
from fedlm.simulations.comparisons.cells import Cell
from fedlm.simulations.comparisons.comparison import rounds_to_train, run_comparison
from fedlm.simulations.experiments.configuration import Comparison
from fedlm.simulations.reporting.report import write_report
from fedlm.simulations.reporting.selection import model_results
from tests.support.cells_here import CellsHere
from tests.support.plain_runs import MODEL, NO_PRIVACY, OTHER_MODEL, PUBLIC

pytestmark = pytest.mark.usefixtures("plain_cohorts")
RATES = {"client_learning_rates": (0.01, 0.1, 0.3, 1.0), "server_learning_rates": (0.01, 0.1)}


@pytest.fixture
def settings(small_store):
    shared = {name: value for name, value in PUBLIC.items() if name != "model"} | NO_PRIVACY
    return (
        shared
        | RATES
        | {"data": small_store, "models": (MODEL,), "rounds": 4, "seeds": (3, 5), "halvings": 2, "evaluate_every": 1}
    )


def rounds_by_rate(folder):
    found: Counter[int] = Counter()
    for path in (folder / "cells").glob("*/*/seed-3/metrics.jsonl"):
        found[len(path.read_text().splitlines())] += 1
    return dict(found)


def run(settings, out, **changes):
    return run_comparison(compose(Comparison, **settings | changes), out, CellsHere())


def test_the_rounds_of_all_cells_are_known_before(settings):
    # The first seed's: of eight pairs four have one round, two two, and two all; then the best pair with the other.
    assert rounds_to_train(compose(Comparison, **settings)) == 4 * 1 + 2 * 2 + 2 * 4 + 4
    assert rounds_to_train(compose(Comparison, **settings | {"halvings": 0})) == 8 * 2 * 4
    odd = {"rounds": 5, "client_learning_rates": (0.1, 0.2, 0.3), "server_learning_rates": (0.1,), "halvings": 1}
    assert rounds_to_train(compose(Comparison, **settings | odd)) == 3 + 2 * 5 + 5


@pytest.mark.long
def test_the_better_client_rates_of_each_server_rate_go_on_and_the_best_pair_has_all_seeds(settings, tmp_path):
    results = run(settings, tmp_path / "halved")
    # Of eight pairs four end after one round, two after two, and one of each server rate comes to the end.
    assert rounds_by_rate(tmp_path / "halved") == {1: 4, 2: 2, 4: 2}
    assert len(results) == 3
    whole = {one.cell.directory.parts[-2:]: one for one in run(settings, tmp_path / "whole", halvings=0)}
    assert len(whole) == 16
    for server in RATES["server_learning_rates"]:
        cells = [one for one in whole.values() if one.cell.experiment.server_learning_rate == server]
        cells = [one for one in cells if one.cell.experiment.seed == 3]
        for rounds, number in ((1, 2), (2, 1)):
            cells = sorted(cells, key=lambda one, rounds=rounds: one.cell.heldout_loss(rounds))[:number]
        rates = f"client-{cells[0].cell.experiment.client_learning_rate:g}_server-{server:g}"
        assert (rates, "seed-3") in {one.cell.directory.parts[-2:] for one in results}
    # A run that went on from a checkpoint ends as one that did not stop.
    for one in results:
        assert one.summary["heldout_loss"] == whole[one.cell.directory.parts[-2:]].summary["heldout_loss"]
    (entry,) = model_results(results)
    assert [one.cell.experiment.seed for one in entry.selected.results] == [3, 5]


@pytest.mark.long
def test_each_model_is_halved_by_itself_and_the_report_says_so(settings, tmp_path):
    settings |= {"models": (MODEL, OTHER_MODEL), "halvings": 1, "server_learning_rates": (0.1,)}
    results = run(settings, tmp_path)
    assert Counter(one.cell.experiment.model for one in results) == {MODEL: 3, OTHER_MODEL: 3}
    page = write_report(compose(Comparison, **settings), results, tmp_path, "fedlm compare").read_text()
    assert "were halved once" in page
    assert "every test client the same" in page
    assert all((one.cell.directory / "test_clients.parquet").exists() for one in results)


def test_it_goes_on_with_what_is_left_and_trains_nothing_twice(settings, tmp_path, monkeypatch):
    trained, real = [], Cell.run

    def until_the_fifth(cell, report):
        trained.append(cell)
        if len(trained) == 5:
            raise KeyboardInterrupt
        real(cell, report)

    monkeypatch.setattr(Cell, "run", until_the_fifth)
    with pytest.raises(KeyboardInterrupt):
        run(settings, tmp_path / "stopped")
    monkeypatch.setattr(Cell, "run", lambda cell, report: (trained.append(cell), real(cell, report)))
    results = run(settings, tmp_path / "stopped")
    assert len(trained) == 8 + 4 + 2 + 1 + 1
    trained.clear()
    again = run(settings, tmp_path / "stopped")
    assert trained == []
    assert [one.summary for one in again] == [one.summary for one in results]


def test_a_damaged_summary_is_named(settings, tmp_path):
    only = {"client_learning_rates": (0.1,), "server_learning_rates": (0.1,), "seeds": (3,), "halvings": 1}
    (result,) = run(settings, tmp_path, **only)
    (result.cell.directory / "summary.json").write_text('{"status": ')
    with pytest.raises(CheckpointError, match=r"summary\.json: cannot be read"):
        run(settings, tmp_path, **only)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"halvings": 3}, "halvings is 3, but 4 rounds can be halved 2 times"),
        ({"privacy": "gaussian", "noise_multiplier": 1.0, "delta": 1e-5}, "halvings is 2, but private runs"),
        (
            {"mechanisms": ("tree",), "epsilons": (5.0, math.inf), "delta": 1e-5},
            "halvings is 2, but private runs",
        ),
    ],
)
def test_what_cannot_be_halved_is_refused(settings, changes, message):
    with pytest.raises(ConfigurationError, match=message):
        compose(Comparison, **settings | {"data": Path("nowhere")} | changes)
