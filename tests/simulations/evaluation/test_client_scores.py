import numpy as np
import pytest

from fedlm.fl_core.rounds.scores import ClientSums
from fedlm.models.losses import ExampleSums
from fedlm.simulations.evaluation.client_scores import describe_clients, spread


def test_a_spread_counts_every_client_with_a_score_once():
    values = np.array([1.0, 2.0, 3.0, 4.0, 10.0, np.nan])
    assert spread(values) == pytest.approx({"mean": 4.0, "p10": 1.4, "median": 3.0, "p90": 7.6, "count": 5})
    # What is no finite number can be written as JSON.
    assert spread(np.array([np.nan])) == {"mean": None, "p10": None, "median": None, "p90": None, "count": 0}
    found = spread(np.array([1.0, 2.0, np.inf, np.inf]))
    assert (found["mean"], found["p10"], found["p90"], found["count"]) == (None, 1.3, None, 4)


def sums():
    """Two clients: 10 of 20 scored targets right and none of 0."""
    columns = {"loss": [40, 2], "tokens": [25, 1], "scored_loss": [20 * np.log(8), 0], "scored_tokens": [20, 0]}
    right = {"scored_correct": [10, 0], "in_vocabulary_tokens": [16, 0], "in_vocabulary_correct": [8, 0]}
    return ClientSums(np.array([1, 4]), np.array([3, 1]), ExampleSums(*map(np.array, (columns | right).values())))


def test_clients_are_described_by_score():
    described = describe_clients(sums())
    assert set(described) == {"perplexity", "accuracy", "in_vocabulary_accuracy", "tokens"}
    assert described["perplexity"]["count"] == 1
    np.testing.assert_allclose(described["perplexity"]["median"], 8)
    assert described["accuracy"]["mean"] == described["in_vocabulary_accuracy"]["p10"] == 0.5
    expected = {"mean": 13.0, "p10": 3.4, "median": 13.0, "p90": 22.6, "count": 2}
    assert described["tokens"] == pytest.approx(expected)
