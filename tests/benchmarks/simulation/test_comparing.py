"""Statistics of timings."""

import numpy as np
import pytest

from benchmarks.simulation.against_peers_report import plot, table
from benchmarks.simulation.comparing import best_of, loss_disagreements, pass_ratios, spread
from benchmarks.simulation.scaling import fit_line


def test_spread():
    assert spread([3.0, 1.0, 2.0, 10.0]) == (1.0, 2.5, 10.0)


def test_ratios_are_taken_pass_by_pass():
    assert pass_ratios([2.0, 8.0, 9.0], [1.0, 2.0, 3.0]) == (2.0, 3.0, 4.0)


def test_only_passes_that_both_ran_count():
    assert pass_ratios([2.0, 8.0], [1.0]) == (2.0, 2.0, 2.0)
    assert pass_ratios([2.0], []) is None


def test_the_best_is_the_one_with_the_highest_median():
    rates = {"a": [1.0, 9.0, 1.0], "b": [2.0, 2.0, 2.0], "c": [5.0], "d": []}
    assert best_of(rates, ("a", "b", "d")) == "b"
    assert best_of(rates, ("d", "e")) is None


def test_losses_agree_where_they_change_alike():
    after = {"engine": 8.0, "near": 8.01, "far": 8.1, "bare": None}
    assert loss_disagreements(9.0, after, "engine") == {"far": pytest.approx(0.1)}


def test_a_loss_that_is_no_number_disagrees():
    assert loss_disagreements(9.0, {"engine": 8.0, "broken": float("nan")}, "engine").keys() == {"broken"}


def test_without_the_reference_nothing_is_said_of_losses():
    assert loss_disagreements(9.0, {"other": 8.0}, "engine") == {}


def test_a_line_through_points_that_lie_on_one():
    points = [{"steps": steps, "spread_of_seconds": [0.0, 0.5 + 0.01 * steps, 9.0]} for steps in (10, 50, 200)]
    line = fit_line(points)
    assert line["fixed_seconds"] == pytest.approx(0.5)
    assert line["seconds_per_step"] == pytest.approx(0.01)
    assert line["greatest_deviation"] == pytest.approx(0.0, abs=1e-6)


def test_the_report_copes_with_a_model_that_some_did_not_run():
    numbers = {
        "steps": 10,
        "steps_per_second": 40.0,
        "clients_per_second": 2.0,
        "cpu_seconds": 1.0,
        "seconds_to_first_round": None,
        "peak_memory_mib": 100,
        "idle_cpu_percent": 0.0,
        "loss_after": None,
    }
    ratio = {"min": 1.0, "median": 2.0, "max": 3.0}
    small = {"clients": 5, "contestants": {"engine": numbers, "pfl": numbers}, "engine_over": {"pfl": ratio}}
    large = {"clients": 2, "contestants": {"engine": numbers}, "engine_over": {}}
    nothing = {"clients": 2, "contestants": {}, "engine_over": {}}
    figure = plot({"small": small, "large": large, "nothing": nothing})
    assert [panel.get_title() for panel in figure.axes] == [
        "small, 5 clients",
        "large, 2 clients",
        "nothing, 2 clients",
    ]
    assert table("small", small).row_count == 2
    assert np.isfinite(figure.get_size_inches()).all()
