import math

import mpmath
import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting.composition import epsilon_bounds
from fedlm.fl_core.privacy.accounting.release_events import GaussianEvent, StatedEvent
from fedlm.fl_core.privacy.origins.vocabulary_origin import VocabularyOrigin, origin_of_import
from fedlm.fl_core.privacy.promise.counts.vocabulary_spending import plan_vocabulary, vocabulary_events


def gaussian_delta(epsilon, noise):
    """Compute the smallest delta of a Gaussian mechanism (Balle and Wang 2018, theorem 8) with 50 digits."""
    with mpmath.workdps(50):
        epsilon, noise = mpmath.mpf(epsilon), mpmath.mpf(noise)
        half, loss = 1 / (2 * noise), epsilon * noise
        return mpmath.ncdf(half - loss) - mpmath.exp(epsilon) * mpmath.ncdf(-half - loss)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 50.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-15])
def test_noise_is_enough_and_no_more(epsilon, delta):
    plan = plan_vocabulary(epsilon, delta, 100)
    assert gaussian_delta(epsilon, plan.noise_multiplier) + plan.threshold_delta <= plan.delta * (1 + 1e-9)
    assert gaussian_delta(epsilon, plan.noise_multiplier * 0.999) + plan.threshold_delta > plan.delta


def test_events_come_to_what_was_asked_for():
    origin = origin_of_import(plan_vocabulary(2.0, 1e-6, 500))
    epsilon = epsilon_bounds(vocabulary_events(origin, "client: all examples"), 1e-6).upper
    assert epsilon == pytest.approx(2.0, rel=1e-3)


def test_a_part_of_a_client_moves_its_words():
    plan = plan_vocabulary(2.0, 1e-6, 500)
    origin = origin_of_import(plan)
    gaussian, found = vocabulary_events(origin, "example: one sequence")
    assert gaussian == GaussianEvent(plan.noise_multiplier / math.sqrt(2))
    assert found == StatedEvent(0.0, plan.threshold_delta, 2)


def test_only_private_vocabularies_spend():
    for kind in ("given", "public", "training data"):
        assert vocabulary_events(VocabularyOrigin(kind), "client: all") == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("epsilon", value) for value in (0.0, math.inf, math.nan)),
        *(("delta", value) for value in (0.0, 1.0)),
        ("words_per_client", 0),
    ],
)
def test_numbers_are_checked(name, value):
    numbers = {"epsilon": 1.0, "delta": 1e-6, "words_per_client": 5} | {name: value}
    with pytest.raises(ConfigurationError, match=f"vocabulary_{name} is {value}"):
        plan_vocabulary(*numbers.values())
