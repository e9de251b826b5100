"""Federated rounds whose clients drop activations in training."""

import numpy as np
import pytest

import fedlm
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.models.families.recurrent_recommenders import RecurrentRecommenderConfig, gru4rec
from tests.conftest import texts_of_sixty_clients

pytestmark = pytest.mark.usefixtures("quick_compilation")

MODEL = fedlm.named("small gru4rec", fedlm.ModelEntry(gru4rec, RecurrentRecommenderConfig(embedding=4, hidden=6)))
SETTINGS = {"rounds": 4, "cohort_size": 5, "length": 6, "client_learning_rate": 0.5, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def data():
    return fedlm.DataInMemory.from_texts(texts_of_sixty_clients(), vocabulary_size=80)


@pytest.fixture(scope="module")
def run(data):
    def simulate(out, **changes):
        return fedlm.simulate(model=MODEL, data=data, out=out, **SETTINGS | {"dropout": 0.4} | changes)

    return simulate


@pytest.mark.long
def test_a_run_that_goes_on_drops_the_same(run, tmp_path):
    whole = run(tmp_path / "whole")
    run(tmp_path / "run", rounds=2)
    assert run(tmp_path / "run").summary["parameters_sha256"] == whole.summary["parameters_sha256"]


def test_a_model_without_dropout_is_refused(data, tmp_path):
    with pytest.raises(ConfigurationError, match="'cifg_tiny' has none"):
        fedlm.simulate(model="cifg_tiny", data=data, out=tmp_path / "run", **SETTINGS, dropout=0.4)
    assert not (tmp_path / "run").exists()


def test_sequences_longer_than_a_model_has_positions_for_are_refused(data, tmp_path):
    with pytest.raises(ConfigurationError, match=r"the model sasrec_tiny cannot be used with length 51: .* for 50"):
        fedlm.simulate(model="sasrec_tiny", data=data, out=tmp_path / "run", **SETTINGS | {"length": 51})
    assert not (tmp_path / "run").exists()


def test_what_a_client_drops_follows_from_round_and_client_and_the_secret_where_there_is_one():
    def drawn(plan, client):
        return plan.dropout(client).integers(1 << 32, size=4).tolist()

    plans = [RoundPlan(0, np.arange(3), 5, 0.1, secret) for secret in (None, bytes(32), bytes(31) + b"1")]
    plans.append(RoundPlan(1, np.arange(3), 5, 0.1))
    streams = [drawn(plan, client) for plan in plans for client in (0, 1)]
    assert len({tuple(stream) for stream in streams}) == len(streams)
    assert drawn(plans[0], 1) == drawn(RoundPlan(0, np.arange(2), 5, 0.2), 1)
    assert drawn(plans[0], 1) != plans[0].shuffling(1).integers(1 << 32, size=4).tolist()
