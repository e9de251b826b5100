import dataclasses
import math

import numpy as np
import pytest
import scipy.stats

from fedlm.simulations.evaluation.client_scores import write_table
from fedlm.simulations.reporting.formatting import DASH
from fedlm.simulations.reporting.gaps import Gap, Interval, finding, gaps
from fedlm.simulations.reporting.selection import model_results
from tests.simulations.reporting.hand_made_results import make_result

LOSSES = {"cifg_tiny": (5.0, 5.2, 5.1), "si_cifg_tiny": (4.8, 5.1, 4.9), "transformer_1x32": (5.3, 5.2, 5.6)}


def results_of(losses, **settings):
    return [
        make_result(model, seed=seed, loss=loss, test_loss=loss + 0.1, **settings)
        for model, of_seeds in losses.items()
        for seed, loss in enumerate(of_seeds)
    ]


def test_a_gap_is_taken_seed_by_seed_against_the_twin_or_the_first_model():
    twin, first = gaps(model_results(results_of(LOSSES)))
    assert (twin.model, twin.other, twin.seeds) == ("si_cifg_tiny", "cifg_tiny", 3)
    assert (first.model, first.other) == ("transformer_1x32", "cifg_tiny")
    differences = np.array([-0.2, -0.1, -0.2])
    low, high = scipy.stats.t.interval(0.95, 2, differences.mean(), differences.std(ddof=1) / math.sqrt(3))
    for found in (twin.test, twin.heldout):
        assert found.mean == pytest.approx(math.exp(differences.mean()) - 1)
        assert found.half_width == pytest.approx(math.exp(differences.mean()) * (high - low) / 2)
    assert twin.over_seeds is None


def test_seeds_that_one_model_lost_are_left_out_and_of_one_there_is_no_interval():
    results = results_of({"cifg_tiny": (5.0, 5.2), "si_cifg_tiny": (4.8,)})
    results.append(make_result("si_cifg_tiny", seed=1, loss=9.0, status="diverged"))
    (gap,) = gaps(model_results(results))
    assert gap.seeds == 1
    assert gap.test == Interval(pytest.approx(math.exp(-0.2) - 1), math.inf)
    assert gap.row() == ["si_cifg_tiny", "cifg_tiny", "1", f"-18.1 ± {DASH}", f"-18.1 ± {DASH}", DASH, DASH]
    assert gaps(model_results(results[:2] + results[3:])) == []
    assert gaps(model_results(results[:2])) == []


def test_one_sentence_says_what_was_found_and_how_sure_it_is():
    twin = Gap("si_cifg", "cifg", "", 3, Interval(-0.07, 0.023), Interval(-0.07, 0.02))
    other = Gap("si_transformer", "transformer", "", 3, Interval(0.031, 0.3), Interval(0.0, 0.1))
    sure = "si_cifg has a test perplexity 7.0 ± 2.3 % lower than cifg"
    unsure = "si_transformer has a test perplexity 3.1 ± 30.0 % higher than transformer"
    assert finding([twin, other]) == f"Found with 95 % confidence, over 3 seeds: {sure}; not decided: {unsure}."
    assert finding([other]) == f"Nothing is decided with 95 % confidence, over 3 seeds: {unsure}."
    # Seeds alone do not decide what another draw of people might turn.
    by_people = twin._replace(over_clients=Interval(-0.01, 0.05))
    assert finding([by_people]) == f"Nothing is decided with 95 % confidence, over 3 seeds and over people: {sure}."
    assert not twin._replace(over_clients=Interval(0.07, 0.01)).decided
    assert [gap.outcome for gap in (twin, other, twin._replace(test=Interval(0.07, 0.023)))] == [
        *("better", "undecided", "worse")
    ]
    one_seed = twin._replace(seeds=1, test=Interval(-0.07, math.inf))
    assert finding([one_seed]).endswith("7.0 % lower than cifg, which one seed cannot tell from chance.")
    assert finding([]) == ""


def test_every_client_counts_the_same(tmp_path):
    """One client has nearly all of the text, and is the only one for whom the model is worse."""
    losses = {"cifg_tiny": ([5.0, 5.0, 5.0], [5.5, 5.0, 5.2]), "si_cifg_tiny": ([5.9, 4.9, 4.8], [5.9, 4.8, 5.1])}
    results = []
    for model, of_seeds in losses.items():
        for seed, of_clients in enumerate(of_seeds):
            result = make_result(model, seed=seed, loss=5.0)
            folder = tmp_path / model / str(seed)
            folder.mkdir(parents=True)
            # A client without text has no loss, and the order is another in each run.
            columns = {"client_id": ["ann", "ben", "cleo", "dan"], "loss": [*of_clients, math.nan]}
            write_table(folder / "test_clients.parquet", {name: of[:: 1 - 2 * seed] for name, of in columns.items()})
            results.append(dataclasses.replace(result, cell=dataclasses.replace(result.cell, directory=folder)))
    (gap,) = gaps(model_results(results))
    differences = np.array([[0.9, -0.1, -0.2], [0.4, -0.2, -0.1]])
    assert gap.better_for == pytest.approx(2 / 3)
    for found, axis in ((gap.over_seeds, 1), (gap.over_clients, 0)):
        each = differences.mean(axis=axis)
        error = each.std(ddof=1) / math.sqrt(len(each))
        assert found.mean == pytest.approx(math.exp(differences.mean()) - 1)
        width = math.exp(differences.mean()) * scipy.stats.t.ppf(0.975, len(each) - 1) * error
        assert found.half_width == pytest.approx(width)
    assert gap.row()[-1] == "67 %"
