from itertools import pairwise

import pytest

from fedlm.simulations.reporting.plots.curves import LABEL_GAP, TOP_LABEL, perplexity_plot, spread_out
from fedlm.simulations.reporting.plots.line_styles import line_styles
from fedlm.simulations.reporting.plots.rate_maps import cell_text, rate_map_plot
from fedlm.simulations.reporting.selection import group_results, model_results
from tests.simulations.reporting.hand_made_results import make_result


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_twins_share_a_colour_and_the_standard_one_is_dashed():
    styles = line_styles(["cifg_tiny", "si_cifg_tiny", "transformer_tiny"])
    assert styles["cifg_tiny"]["color"] == styles["si_cifg_tiny"]["color"] != styles["transformer_tiny"]["color"]
    assert styles["cifg_tiny"]["linestyle"] != "-"
    assert styles["si_cifg_tiny"]["linestyle"] == styles["transformer_tiny"]["linestyle"] == "-"


@pytest.mark.parametrize("heights", [[0.1, 0.11, 0.9], [0.9, 0.95, 1.0], [0.0] * 5, []])
def test_labels_are_moved_apart(heights):
    places = spread_out(heights)
    assert all(upper - lower > LABEL_GAP - 1e-9 for lower, upper in pairwise(places))
    assert all(0 <= place <= TOP_LABEL for place in places)


def test_labels_that_do_not_collide_stay():
    assert spread_out([0.1, 0.5, 0.9]) == [0.1, 0.5, 0.9]


def test_cells_of_the_map_say_what_was_lost():
    (group,) = group_results(
        [make_result(seed=0, perplexity=100.0), *(make_result(seed=seed, status="diverged") for seed in (1, 2))]
    )
    assert cell_text(group) == "100.0\ndiverged 2/3"
    (failed,) = group_results([make_result(status="failed")])
    assert cell_text(failed) == "failed 1/1"


def test_map_hatches_lost_cells_and_frames_the_selected_one():
    models = model_results([make_result(client=0.5, loss=4.0), make_result(client=1.0, status="diverged")])
    axes = rate_map_plot(models).axes[0]
    frames = [patch for patch in axes.patches if not patch.get_fill()]
    assert [patch.get_x() < 0 for patch in frames] == [True]
    hatched = [patch.get_x() for patch in axes.patches if patch.get_hatch()]
    assert [x > 0.5 for x in hatched] == [True]


def test_curves_are_labelled_and_marked_where_the_twin_is_reached():
    models = model_results(
        [make_result("cifg_tiny", curve=[9.0, 6.0, 5.0]), make_result("si_cifg_tiny", curve=[9.0, 4.0, 3.0])]
    )
    axes = perplexity_plot(models).axes[0]
    assert texts(axes) == ["si_cifg_tiny  3.00", "cifg_tiny  5.00"]
    rings = [line.get_xydata().tolist() for line in axes.lines if line.get_markerfacecolor() == "none"]
    assert rings == [[[2.0, 4.0]]]
    assert axes.get_yscale() == "log"


def test_a_seed_that_diverged_does_not_squeeze_the_others():
    models = model_results(
        [make_result(seed=0, curve=[9.0, 5.0]), make_result(seed=1, status="diverged", curve=[9.0, 1e9])]
    )
    assert perplexity_plot(models).axes[0].get_ylim()[1] < 12


def test_band_is_one_standard_deviation_and_never_below_perplexity_one():
    models = model_results([make_result(seed=0, curve=[9.0, 1.1]), make_result(seed=1, curve=[11.0, 8.9])])
    (band,) = perplexity_plot(models).axes[0].collections
    edges = band.get_paths()[0].vertices
    assert edges[:, 1].max() == pytest.approx(10 + 2**0.5)
    assert edges[:, 1].min() == 1.0


def test_without_scores_the_plot_says_so():
    axes = perplexity_plot(model_results([make_result(status="failed", curve=[])])).axes[0]
    assert texts(axes) == ["no run has a held-out score"]
