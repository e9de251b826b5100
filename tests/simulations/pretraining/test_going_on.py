"""Central runs that go on with what they have written down."""

import pytest

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.privacy.ledger import PrivacyLedger
from fedlm.simulations.pretraining import private_steps
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
    assert begun.plan == goes_on.plan == goes_on.going_on(begun.plan, (), begun.vocabulary_origin, None).plan
