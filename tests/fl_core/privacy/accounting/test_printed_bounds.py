"""Bounds that are printed: on the right side of what was proven, and no longer than they must be."""

import math
import re

import numpy as np
import pytest

from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_down, rounded_up
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.promise.guarantee import account
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan


def test_a_bound_stays_a_bound_and_is_close():
    for value in np.exp(np.random.default_rng(0).uniform(-40, 12, 2000)):
        for digits in (3, 4, 6):
            above, below = float(rounded_up(value, digits)), float(rounded_down(value, digits))
            assert below <= value <= above
            assert above - below <= 1.0001 * 10.0 ** (math.floor(math.log10(value)) - digits + 1)


@pytest.mark.parametrize("text", ["0.1", "2", "1e-05", "1.1", "0.3", "5.004", "0", "inf"])
def test_what_is_short_is_printed_as_it_was_given(text):
    assert (rounded_up(float(text)), rounded_down(float(text))) == (text, text)


def test_a_statement_says_no_less_than_what_was_proven():
    bound = BoundedParticipation(max_participations=4)
    to_nearest = 0
    for noise in np.linspace(1.0, 8.0, 25):
        found = account(PrivacyPlan("gaussian", 100, float(noise), bound), delta=1.23456e-6)
        said = re.findall(r"(epsilon|delta|rho) = ([0-9.]+(?:e-[0-9]+)?)", found.sentence())
        assert len(said) == 3
        for name, value in said:
            assert float(value) >= getattr(found, name)
        to_nearest += float(f"{found.epsilon:.4g}") < found.epsilon
    # Rounded to the nearest, some would have been too small.
    assert to_nearest > 5
