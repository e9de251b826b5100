import numpy as np
import pytest

from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.fl_core.privacy.origins.relevance_origin import read_relevance
from fedlm.models.special_tokens import BOS_ID, EOS_ID, PAD_ID
from fedlm.simulations.data.relevance import count_relevance
from fedlm.simulations.pretraining.batches.opening_units import open_units
from fedlm.simulations.pretraining.preparing import prepare_pretraining
from fedlm.simulations.pretraining.settings import Pretraining
from tests.simulations.data.recommendation.item_stores import import_sequences, made_up_sequences
from tests.simulations.pretraining.small_stores import write_store

CLIENTS = [[[5, 6, 5], [7]], [[5]], [], [[8, 9, 10, 11, 12, 13]]]


@pytest.fixture
def store(tmp_path):
    return write_store(tmp_path / "store", CLIENTS)


def test_shares_of_examples(store):
    found = count_relevance(store, "example", 4, "none", public=True)
    assert (found.values[PAD_ID], found.values[BOS_ID]) == (1.0, 1.0)
    # The long example is cut before its end.
    assert [found.values[token] for token in (5, 6, 8, 11, 12, EOS_ID)] == [0.5, 0.25, 0.25, 0.25, 0.125, 0.75]
    assert found.origin.kind == "public"
    assert found.training_data == store.training_data(check=True)


def test_shares_of_clients(store):
    found = count_relevance(store, "client", 4, "none")
    assert [found.values[token] for token in (5, 7, 8, 14)] == [2 / 3, 1 / 3, 1 / 3, 1 / 6]
    assert found.origin.kind == "training data"
    assert found.training_data == store.training_data(check=True)


def test_packed_sequences_are_those_of_training(store, tmp_path):
    """Of a single client they are the same as training cuts."""
    one = write_store(tmp_path / "one", [[[5, 6, 7, 5, 8], [9, 5], [6, 6, 6, 6]]])
    units = open_units(one, "train", 4, unit="example", packing="packed", sequences_per_unit=1, seed=0, cache=tmp_path)
    tokens, _ = units.sequences(np.arange(units.count))
    found = count_relevance(one, "example", 4, "packed", public=True)
    for token in (5, 6, 7, 9, BOS_ID):
        assert found.values[token] == np.mean((tokens[:, 0] == token).any(axis=1))


@pytest.mark.parametrize("unit", ["example", "user"])
def test_one_count_of_items_is_for_every_run(tmp_path, unit):
    """All of a user is one unit, whichever is named; to count again would spend as much again."""
    store = import_sequences(tmp_path, made_up_sequences())
    found = count_relevance(store, "example", 8, public=True)
    assert found == count_relevance(store, "client", 8, public=True)
    assert found.unit == "client"
    found._replace(training_data=None).write(tmp_path / "relevance.json")
    settings = {"data": store.path, "length": 8, "batch_size": 4, "steps": 2, "noise_multiplier": 1.0, "delta": 1e-3}
    run = prepare_pretraining(
        Pretraining(model="dpformer_tiny", unit=unit, relevance=tmp_path / "relevance.json", **settings)
    )
    assert run.capabilities.constants()["parameter_errors"].relevance == found.values


def test_nothing_to_count_is_refused(store, tmp_path):
    with pytest.raises(DataError, match="no text to count"):
        count_relevance(write_store(tmp_path / "empty", [[]]), "example", 4, "none")
    with pytest.raises(ConfigurationError, match="length is 0"):
        count_relevance(store, "example", 0, "none")


def test_by_command(store, tmp_path, fedlm_here):
    out = tmp_path / "relevance.json"
    options = ["data", "relevance", store.path, "--out", out, "--length", 4, "--packing", "none"]
    said = fedlm_here(*options, "--epsilon", 2, "--delta", 1e-6)
    assert said.returncode == 0, said.stderr
    assert "differential privacy for each client" in said.stdout
    found = read_relevance(out)
    assert (found.origin.kind, found.unit, found.length, found.packing) == ("private", "example", 4, "none")
    assert found.origin.private.epsilon == 2
    again = fedlm_here(*options)
    assert again.returncode == 2
    assert "exists already" in again.stderr
    other = [*options[:4], tmp_path / "other.json", *options[5:]]
    assert "RELEVANCES NOT COVERED" in fedlm_here(*other).stdout
    for wrong, words in (
        (("--epsilon", 2), "delta is not given"),
        (("--epsilon", 2, "--delta", 1e-6), "may hold data of several"),
        (("--epsilon", 2, "--delta", 1e-6, "--origin", "public"), "said to be public"),
        (("--tokens-per-unit", 3), "--tokens-per-unit is 3, which does nothing without --epsilon"),
    ):
        refused = fedlm_here(*options[:4], tmp_path / "third.json", *wrong)
        assert refused.returncode == 2
        assert words in refused.stderr
