import json

import pytest

from fedlm.simulations.comparisons.cells import list_cells
from fedlm.simulations.reporting.progress_page import (
    BEGUN,
    WAITING,
    ProgressPage,
    result_so_far,
    write_progress_page,
)
from tests.simulations.reporting.hand_made_results import ROUNDS, make_comparison, make_private_result, make_result
from tests.simulations.reporting.html_page import Page

MODELS = ("cifg_tiny", "si_cifg_tiny")
RELOADS = 'http-equiv="refresh"'


@pytest.fixture
def comparison():
    return make_comparison(MODELS)


def scored(number, perplexity=90.0):
    (row,) = [row for row in make_result(curve=[perplexity] * (number + 1)).rows if row["round"] == number]
    return row


def unscored(number):
    return {name: value for name, value in scored(number).items() if not name.startswith("heldout_")}


def record(cell, rows, summary=None):
    """Write what a run leaves in its folder."""
    cell.directory.mkdir(parents=True, exist_ok=True)
    (cell.directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if summary is not None:
        (cell.directory / "summary.json").write_text(json.dumps(summary))


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_the_page_is_announced_once_there_is_a_curve_and_drawn_again_after_a_while(comparison, tmp_path):
    announced, clock, report = [], Clock(), tmp_path / "report.html"
    page = ProgressPage(comparison, tmp_path, announced.append, clock)
    first, second = list_cells(comparison, tmp_path)[:2]
    page.update(first, unscored(0))
    page.update(first, scored(1))
    page.update(second, scored(1))
    assert not report.exists()
    record(first, [unscored(0), scored(1), scored(2)])
    page.update(first, scored(2))
    assert announced == [report]
    assert RELOADS in report.read_text()
    assert (tmp_path / "plots" / "perplexity.png").read_bytes().startswith(b"\x89PNG")
    report.unlink()
    for seconds, row in ((14.0, scored(ROUNDS - 1)), (2.0, unscored(0))):
        clock.now += seconds
        page.update(first, row)
        assert not report.exists()
    page.update(first, scored(ROUNDS - 1))
    assert report.exists()
    assert len(announced) == 1


def test_drawing_takes_a_small_part_of_the_time(comparison, tmp_path):
    class Slow(Clock):
        def __call__(self):
            self.now += 10.0
            return self.now

    clock, cell = Slow(), list_cells(comparison, tmp_path)[0]
    page = ProgressPage(comparison, tmp_path, lambda path: None, clock)
    page.update(cell, scored(ROUNDS - 1))
    (tmp_path / "report.html").unlink()
    clock.now += 200.0
    page.update(cell, scored(ROUNDS - 1))
    assert not (tmp_path / "report.html").exists()
    clock.now += 40.0
    page.update(cell, scored(ROUNDS - 1))
    assert (tmp_path / "report.html").exists()


def test_a_run_is_read_as_far_as_it_has_come(comparison, tmp_path):
    ended, begun, damaged, waiting = list_cells(comparison, tmp_path)[:4]
    record(ended, [scored(0)], {"status": "diverged"})
    record(begun, [scored(0, 50.0), unscored(1)])
    record(damaged, [scored(0)])
    (damaged.directory / "summary.json").write_text('{"stat')
    statuses = [result_so_far(cell).status for cell in (ended, begun, damaged, waiting)]
    assert statuses == ["diverged", BEGUN, BEGUN, WAITING]
    assert result_so_far(begun).summary["heldout_perplexity"] == 50.0
    assert len(result_so_far(begun).rows) == 2


def results_of(comparison, tmp_path):
    cells = list_cells(comparison, tmp_path)
    record(cells[0], [scored(0, 90.0), scored(1, 80.0)])
    record(cells[1], [scored(0, 95.0), scored(1, 70.0)])
    record(cells[2], [scored(0, 60.0)])
    return [result_so_far(cell) for cell in cells]


def test_the_page_says_how_far_all_runs_are_and_nothing_that_is_decided_later(comparison, tmp_path):
    source = write_progress_page(comparison, results_of(comparison, tmp_path), tmp_path).read_text()
    page = Page(source)
    assert "0 of 8 runs have ended, and 5 of 32 rounds are done" in " ".join(page.text.split())
    assert page.text.count(WAITING) == 5
    assert "NOT PRIVATE" in page.text
    assert "selected" not in page.text
    assert page.tags.count("svg") == 1


def test_no_epsilon_is_stated_before_the_end(comparison, tmp_path):
    private = [make_private_result(epsilon=5.0), make_private_result(epsilon=5.0, mechanism="blt")]
    text = Page(write_progress_page(comparison, private, tmp_path).read_text()).text
    assert "appear when all have ended" in text
    assert "(tree, target epsilon 5)" in text
    assert "1e-05" not in text
    assert "NOT PRIVATE" not in text
