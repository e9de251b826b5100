"""Settings of samplers that contradict each other."""

import pytest

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import ConfigurationError
from fedlm.simulations.engine.cohort_settings import CohortSettings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_separation": 2}, "min_separation is 2, which does nothing with cohort_sampler uniform"),
        ({"cohort_sampler": "best"}, "cohort_sampler is 'best'"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        compose(CohortSettings, **changes)
