import pytest

from fedlm.simulations.reporting.costs import costs, parameters
from fedlm.simulations.reporting.selection import (
    Spread,
    group_results,
    mean_curve,
    mean_heldout_loss,
    model_results,
    select_group,
    spread,
)
from fedlm.simulations.reporting.verdicts import judge, pooled_std
from tests.simulations.reporting.hand_made_results import make_result


def select(*results):
    return select_group(group_results(results))


def rates(group):
    return group.client_learning_rate, group.server_learning_rate


def test_cells_of_one_model_and_rates_make_a_group():
    groups = group_results(
        [
            make_result(seed=0),
            make_result(client=1.0),
            make_result(seed=1),
            make_result(server=0.02),
            make_result("si_cifg_tiny"),
        ]
    )
    assert [(group.model, *rates(group), len(group.results)) for group in groups] == [
        ("cifg_tiny", 0.5, 0.01, 2),
        ("cifg_tiny", 1.0, 0.01, 1),
        ("cifg_tiny", 0.5, 0.02, 1),
        ("si_cifg_tiny", 0.5, 0.01, 1),
    ]


def test_the_lowest_mean_heldout_loss_is_selected_not_the_lowest_single_one():
    chosen = select(
        make_result(client=0.5, seed=0, loss=1.0),
        make_result(client=0.5, seed=1, loss=9.0),
        make_result(client=1.0, seed=0, loss=4.0),
        make_result(client=1.0, seed=1, loss=4.5),
    )
    assert rates(chosen) == (1.0, 0.01)


def test_of_halved_rates_the_pair_that_has_all_seeds_is_selected():
    chosen = select(
        make_result(client=0.5, seed=0, loss=5.0),
        make_result(client=0.5, seed=1, loss=6.0),
        make_result(client=1.0, seed=0, loss=5.1),
    )
    assert rates(chosen) == (0.5, 0.01)


def test_selection_does_not_look_at_test_scores():
    chosen = select(make_result(client=0.5, loss=5.0, test_loss=9.0), make_result(client=1.0, loss=6.0, test_loss=1.0))
    assert rates(chosen) == (0.5, 0.01)


@pytest.mark.parametrize("status", ["diverged", "failed"])
def test_a_combination_that_lost_a_seed_loses_to_a_worse_one_that_finished(status):
    chosen = select(
        make_result(client=0.5, seed=0, loss=2.0),
        make_result(client=0.5, seed=1, loss=2.0, status=status),
        make_result(client=1.0, seed=0, loss=6.0),
        make_result(client=1.0, seed=1, loss=6.0),
    )
    assert rates(chosen) == (1.0, 0.01)


def test_where_all_lost_seeds_fewest_lost_come_first_and_only_finished_seeds_count():
    lost = {"status": "diverged", "loss": 1.0}
    chosen = select(
        *[make_result(client=0.5, seed=0, loss=2.0), *(make_result(client=0.5, seed=seed, **lost) for seed in (1, 2))],
        *[make_result(client=1.0, seed=0, **lost), *(make_result(client=1.0, seed=seed, loss=6.0) for seed in (1, 2))],
        *[make_result(client=2.0, seed=0, **lost), *(make_result(client=2.0, seed=seed, loss=5.0) for seed in (1, 2))],
    )
    assert rates(chosen) == (2.0, 0.01)
    assert mean_heldout_loss(chosen) == 5.0


def test_ties_go_to_the_lower_client_then_the_lower_server_rate():
    chosen = select(
        make_result(client=1.0, server=0.001),
        make_result(client=0.5, server=0.02),
        make_result(client=0.5, server=0.01),
    )
    assert rates(chosen) == (0.5, 0.01)


def test_nothing_is_selected_without_a_heldout_loss():
    assert select(make_result(status="failed"), make_result(client=1.0, status="diverged", loss=None)) is None


def test_a_wholly_diverged_model_is_shown_but_has_no_test_score():
    (entry,) = model_results([make_result(seed=seed, status="diverged", loss=9.0) for seed in range(2)])
    assert entry.selected is not None
    assert entry.test("perplexity") is None


def test_spread_is_the_mean_and_sample_standard_deviation():
    assert spread([1.0, 2.0, 4.0, None, float("nan"), float("inf")]) == (
        pytest.approx(7 / 3),
        pytest.approx((7 / 3) ** 0.5),
        3,
    )
    assert spread([3.0]) == Spread(3.0, None, 1)
    assert spread([None]) is None


def test_test_scores_leave_out_seeds_that_did_not_finish():
    (entry,) = model_results(
        [make_result(seed=0, perplexity=100.0), make_result(seed=1, perplexity=1e30, status="diverged")]
    )
    assert entry.test("perplexity") == Spread(100.0, None, 1)


def test_curve_averages_over_seeds_at_rounds_that_all_have():
    curve = mean_curve([make_result(curve=[8.0, None, 4.0]), make_result(curve=[10.0, 7.0, 6.0])], "perplexity")
    assert curve.rounds.tolist() == [1, 3]
    assert curve.mean.tolist() == [9.0, 5.0]
    assert curve.std == pytest.approx([2**0.5, 2**0.5])
    assert curve.bytes_up.tolist() == [250_000, 750_000]


def test_curve_of_one_seed_has_no_deviation_and_of_none_is_missing():
    assert mean_curve([make_result()], "perplexity").std is None
    assert mean_curve([], "perplexity") is None
    assert mean_curve([make_result(curve=[None])], "perplexity") is None


@pytest.mark.parametrize(
    ("curve", "rounds"), [([9.0, 5.0, 4.0], 2), ([9.0, 6.0, 5.1], None), ([4.0, 6.0, 6.0], 1), ([9.0, 9.0, 5.0], 3)]
)
def test_rounds_until_a_model_is_at_or_below_its_twins_final_perplexity(curve, rounds):
    standard, invariant = model_results(
        [make_result("cifg_tiny", curve=[9.0, 3.0, 5.0]), make_result("si_cifg_tiny", curve=curve)]
    )
    assert (invariant.twin, invariant.twin_perplexity, invariant.rounds_to_twin) == ("cifg_tiny", 5.0, rounds)
    assert (standard.twin, standard.twin_perplexity, standard.rounds_to_twin) == (None, None, None)


def test_no_rounds_to_a_twin_that_is_absent_or_never_finished():
    (alone,) = model_results([make_result("si_cifg_tiny")])
    assert alone.twin is None
    _, invariant = model_results([make_result("cifg_tiny", status="diverged"), make_result("si_cifg_tiny")])
    assert (invariant.twin, invariant.twin_perplexity, invariant.rounds_to_twin) == ("cifg_tiny", None, None)


def test_costs_are_those_of_a_round():
    (group,) = group_results([make_result(seed=0), make_result(seed=1)])
    assert costs(group) == (250_000, 1_000_000, 0.5, 20.0)
    (empty,) = group_results([make_result(curve=[])])
    assert costs(empty) == (None, None, None, None)


def test_parameters_come_from_any_run_that_has_them():
    (entry,) = model_results([make_result(seed=0, status="failed"), make_result(seed=1)])
    assert parameters(entry) == 12_345
    (failed,) = model_results([make_result(status="failed")])
    assert parameters(failed) is None


@pytest.mark.parametrize(
    ("score", "own", "reference", "outcome"),
    [
        ("perplexity", Spread(90.0, 3.0, 3), Spread(100.0, 4.0, 3), "better"),
        ("perplexity", Spread(110.0, 3.0, 3), Spread(100.0, 4.0, 3), "worse"),
        ("accuracy", Spread(0.3, 0.01, 3), Spread(0.2, 0.01, 3), "better"),
        ("accuracy", Spread(0.1, 0.01, 3), Spread(0.2, 0.01, 3), "worse"),
        ("perplexity", Spread(96.0, 4.0, 3), Spread(100.0, 4.0, 3), "undecided"),
        ("perplexity", Spread(90.0, None, 1), Spread(100.0, None, 1), "undecided"),
        ("perplexity", Spread(90.0, None, 1), Spread(100.0, 4.0, 2), "better"),
        ("perplexity", Spread(90.0, 0.0, 2), Spread(100.0, 0.0, 2), "better"),
        ("perplexity", Spread(100.0, 0.0, 2), Spread(100.0, 0.0, 2), "undecided"),
        ("perplexity", None, Spread(100.0, 4.0, 2), "not compared"),
    ],
)
def test_verdicts_are_measured_by_the_pooled_standard_deviation(score, own, reference, outcome):
    assert judge("si_cifg_tiny", "cifg_tiny", score, own=own, reference=reference).outcome == outcome


def test_pooled_deviation_weighs_by_degrees_of_freedom():
    assert pooled_std(Spread(0, 1.0, 2), Spread(0, 3.0, 4)) == pytest.approx(((1 + 3 * 9) / 4) ** 0.5)
