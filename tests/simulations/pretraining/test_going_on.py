"""Central runs that go on with what they have written down."""

import math

import pytest

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.rounds.scores import Scores
from fedlm.fl_core.runs.private_releases import BegunRun
from fedlm.simulations.pretraining import private_steps, run
from fedlm.simulations.pretraining.preparing import prepare_pretraining
from fedlm.simulations.pretraining.settings import Pretraining


@pytest.mark.long
def test_the_number_of_bands_is_searched_for_once(small_store, tmp_path, monkeypatch):
    settings = {"model": "cifg_tiny", "data": small_store, "steps": 4, "batch_size": 8, "length": 8}
    settings = compose(Pretraining, **settings, mechanism="banded", epsilon=8.0, delta=1e-5)
    begun = prepare_pretraining(settings, tmp_path)
    (tmp_path / "privacy").mkdir()
    PrivacyLedger(tmp_path / "privacy" / "ledger.jsonl").begin(begun.plan, begun.delta, "commitment", {})
    monkeypatch.setattr(private_steps, "best_bands", lambda *_: pytest.fail("searched for again"))
    goes_on = prepare_pretraining(settings, tmp_path)
    assert begun.plan == goes_on.plan == goes_on.going_on(BegunRun(begun.plan, begun.origins)).plan


@pytest.mark.long
@pytest.mark.parametrize("private", [True, False])
def test_a_private_run_is_ended_by_no_score_on_anybodys_text(small_store, tmp_path, monkeypatch, private):
    """Who is held out may be among those whom this run, or one that it begins with, was trained on."""
    settings = {"model": "cifg_tiny", "data": small_store, "steps": 3, "batch_size": 8, "length": 8}
    noise = {"noise_multiplier": 1.0, "delta": 1e-5} if private else {"privacy": "none"}
    settings = compose(Pretraining, **settings, **noise, evaluate_every=1, heldout_examples=8, test_examples=8)
    monkeypatch.setattr(run._Training, "_evaluate", lambda *_: Scores(*[math.nan] * 4))
    assert run.run_pretraining(settings, tmp_path)["steps"] == (3 if private else 1)
