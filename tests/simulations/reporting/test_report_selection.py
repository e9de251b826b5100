import pytest

from fedlm.simulations.reporting.selection import (
    Spread,
    group_results,
    mean_curve,
    mean_heldout_loss,
    model_results,
    select_group,
)
from tests.simulations.reporting.hand_made_results import make_result


def rates(group):
    return group.client_learning_rate, group.server_learning_rate


LOST = {"status": "diverged", "loss": 1.0}


@pytest.mark.parametrize(
    ("results", "chosen"),
    [
        # The lowest mean of held-out losses, not the lowest single one; test scores do not count.
        ([(0.5, 0, {"loss": 1.0}), (0.5, 1, {"loss": 9.0}), (1.0, 0, {"loss": 4.0}), (1.0, 1, {"loss": 4.5})], 1.0),
        ([(0.5, 0, {"loss": 5.0, "test_loss": 9.0}), (1.0, 0, {"loss": 6.0, "test_loss": 1.0})], 0.5),
        # Of halved rates the pair that has all seeds.
        ([(0.5, 0, {"loss": 5.0}), (0.5, 1, {"loss": 6.0}), (1.0, 0, {"loss": 5.1})], 0.5),
        # A lost seed loses to worse ones that finished; where all lost some, the fewest come first.
        ([(0.5, 0, {"loss": 2.0}), (0.5, 1, LOST), (1.0, 0, {"loss": 6.0}), (1.0, 1, {"loss": 6.0})], 1.0),
        ([(0.5, 0, {"loss": 2.0}), (0.5, 1, {"status": "failed"}), (1.0, 0, {}), (1.0, 1, {})], 1.0),
        (
            [
                *((0.5, seed, LOST if seed else {"loss": 2.0}) for seed in range(3)),
                *((1.0, seed, {"loss": 6.0} if seed else LOST) for seed in range(3)),
                *((2.0, seed, {"loss": 5.0} if seed else LOST) for seed in range(3)),
            ],
            2.0,
        ),
        # Ties go to the lower client rate, then to the lower server rate.
        ([(1.0, 0, {"server": 0.001}), (0.5, 0, {"server": 0.02}), (0.5, 0, {})], 0.5),
        ([(0.5, 0, {"status": "failed"}), (1.0, 0, {"status": "diverged", "loss": None})], None),
    ],
)
def test_which_learning_rates_are_selected(results, chosen):
    results = [make_result(client=client, seed=seed, **others) for client, seed, others in results]
    found = select_group(group_results(results))
    assert (found and rates(found)) == (chosen and (chosen, 0.01))


def test_only_seeds_that_finished_have_test_scores():
    scored, lost = make_result(seed=0, perplexity=100.0), make_result(seed=1, perplexity=1e30, **LOST)
    (entry,) = model_results([scored, lost])
    assert (entry.test("perplexity"), mean_heldout_loss(entry.selected)) == (Spread(100.0, None, 1), 5.0)
    (entry,) = model_results([lost])
    assert entry.selected is not None
    assert entry.test("perplexity") is None


def test_curve_averages_over_seeds_at_rounds_that_all_have():
    curve = mean_curve([make_result(curve=[8.0, None, 4.0]), make_result(curve=[10.0, 7.0, 6.0])], "perplexity")
    assert curve.rounds.tolist() == [1, 3]
    assert curve.mean.tolist() == [9.0, 5.0]
    assert curve.std == pytest.approx([2**0.5, 2**0.5])
    assert curve.bytes_up.tolist() == [250_000, 750_000]
    assert mean_curve([make_result()], "perplexity").std is None
    assert mean_curve([], "perplexity") is mean_curve([make_result(curve=[None])], "perplexity") is None


@pytest.mark.parametrize(
    ("curve", "rounds"), [([9.0, 5.0, 4.0], 2), ([9.0, 6.0, 5.1], None), ([4.0, 6.0, 6.0], 1), ([9.0, 9.0, 5.0], 3)]
)
def test_rounds_until_a_model_is_at_or_below_its_twins_final_perplexity(curve, rounds):
    standard, invariant = model_results(
        [make_result("cifg_tiny", curve=[9.0, 3.0, 5.0]), make_result("si_cifg_tiny", curve=curve)]
    )
    assert (invariant.twin, invariant.twin_perplexity, invariant.rounds_to_twin) == ("cifg_tiny", 5.0, rounds)
    assert (standard.twin, standard.twin_perplexity, standard.rounds_to_twin) == (None, None, None)
    _, invariant = model_results([make_result("cifg_tiny", status="diverged"), make_result("si_cifg_tiny")])
    assert (invariant.twin, invariant.twin_perplexity, invariant.rounds_to_twin) == ("cifg_tiny", None, None)
