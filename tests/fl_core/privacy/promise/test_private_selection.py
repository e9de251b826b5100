"""What the best of a random number of private trials spends, and how many trials there are."""

import itertools
import math

import dp_accounting
import mpmath
import numpy as np
import pytest
import scipy.stats
from dp_accounting import rdp
from dp_accounting.rdp import rdp_privacy_accountant

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting.gaussian_mechanism import gaussian_delta
from fedlm.fl_core.privacy.accounting.release_events import GaussianEvent, StatedEvent
from fedlm.fl_core.privacy.promise.selection.number_of_trials import TrialsLaw
from fedlm.fl_core.privacy.promise.selection.private_selection import SelectionEvent, composed_above, composed_bounds

TNB, POISSON = "truncated_negative_binomial", "poisson"
LAWS = [
    *(TrialsLaw(TNB, mean, eta) for mean, eta in ((3.0, 0.0), (10.0, 0.5), (10.0, 1.0), (30.0, 2.0))),
    *(TrialsLaw(POISSON, mean) for mean in (3.0, 10.0)),
]
DELTA = 1e-6


def selection(law, *trial):
    return SelectionEvent(trial or (GaussianEvent(2.0),), law)


QUICK = (LAWS[0], LAWS[2], LAWS[-1])
by_law = pytest.mark.parametrize(
    "law", [pytest.param(law, id=law.words(), marks=() if law in QUICK else pytest.mark.long) for law in LAWS]
)


@by_law
def test_the_law_has_the_probabilities_of_the_paper(law):
    assert TrialsLaw(**law.as_json()) == law
    found = [float(one) for one in itertools.islice(law.probabilities(), 2000)]
    assert sum(found) == pytest.approx(1, abs=1e-12)
    assert sum(number * one for number, one in enumerate(found)) == pytest.approx(law.expected_trials, rel=1e-10)
    if law.distribution == POISSON:
        wanted = [scipy.stats.poisson(law.expected_trials).pmf(number) for number in range(60)]
    elif law.eta:
        # Definition 1, with a product in place of gamma functions.
        with mpmath.workdps(40):
            gamma, eta = mpmath.mpf(law.gamma), mpmath.mpf(law.eta)
            wanted = [0.0] + [
                float((1 - gamma) ** k / (gamma**-eta - 1) * mpmath.rf(eta, k) / mpmath.factorial(k))
                for k in range(1, 60)
            ]
    else:
        wanted = [0.0, *(scipy.stats.logser(1 - law.gamma).pmf(np.arange(1, 60)))]
    np.testing.assert_allclose(found[:60], wanted, rtol=1e-9)


@by_law
def test_the_number_of_trials_follows_the_law(law):
    """A chi-squared test of the true source of randomness; it fails of itself with probability 1e-6 for each law."""
    draws = np.array([law.draw() for _ in range(1000)])
    probabilities = [float(one) for one in itertools.islice(law.probabilities(), 400)]
    cells, expected, counts = 0.0, [], []
    for number, one in enumerate(probabilities):
        cells += one
        if cells * len(draws) >= 20:
            expected.append(cells * len(draws))
            counts.append(int(np.sum(draws <= number)) - sum(counts))
            cells = 0.0
    expected.append(len(draws) - sum(expected))
    counts.append(len(draws) - sum(counts))
    assert scipy.stats.chisquare(counts, expected).pvalue > 1e-6


def test_a_draw_is_the_inverse_of_the_distribution():
    law = TrialsLaw(TNB, 10.0, 1.0)
    total = 1 << 192
    assert law.draw(lambda below: 0) == 1
    # The first half, but for the last part, of 1 - 0.9^k.
    assert [law.draw(lambda below, k=k: int(total * (1 - 0.9**k) * (1 - 1e-12))) for k in (1, 2, 7)] == [1, 2, 7]
    assert [law.draw(lambda below, k=k: int(total * (1 - 0.9**k) * (1 + 1e-12))) for k in (1, 2, 7)] == [2, 3, 8]
    assert 1000 < law.draw(lambda below: below - 1) < 2000
    assert TrialsLaw(POISSON, 3.0).draw(lambda below: 0) == 0


@by_law
@pytest.mark.parametrize("noise", [0.7, 20.0])
def test_epsilon_is_that_of_the_theorems(law, noise):
    """Against a slow reference: theorems 2 and 6, with exact divergences, and delta, of the Gaussian mechanism."""
    with mpmath.workdps(30):
        rho, mean = 1 / mpmath.mpf(2 * noise**2), mpmath.mpf(law.expected_trials)
        fine = [1 + mpmath.mpf(10) ** (mpmath.mpf(step) / 40) for step in range(-60, 120)]
        constant = 0
        if law.eta is not None:
            inner = (rho * (one - 1) - mpmath.log(law.gamma) / one for one in [mpmath.mpf(1), *fine])
            constant = (1 + law.eta) * min(inner)

        def divergence(order):
            spent = rho * order + mpmath.log(mean) / (order - 1)
            if law.eta is not None:
                return spent + constant
            return spent + mean * gaussian_delta(noise, float(mpmath.log(1 + 1 / (order - 1))))

        reference = float(
            min(
                divergence(order) + mpmath.log(1 - 1 / order) - mpmath.log(DELTA * order) / (order - 1)
                for order in fine
            )
        )
    found = composed_above([selection(law, GaussianEvent(noise))], DELTA)
    # The library takes theorem 6's delta from divergences, which is somewhat more than it is.
    assert reference * (1 - 1e-3) <= found <= reference * (1.02 if law.eta is not None else 1.3)


@by_law
def test_the_library_of_accounting_says_the_same(law):
    events = [GaussianEvent(3.0), GaussianEvent(1.2, 50, 0.05)]
    assert rdp_privacy_accountant.DEFAULT_RDP_ORDERS[0] > 1
    trial = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.2)), 50
    )
    repeated = dp_accounting.dp_event.RepeatAndSelectDpEvent(trial, law.expected_trials, law.shape)
    theirs = rdp.RdpAccountant().compose(repeated).compose(dp_accounting.GaussianDpEvent(3.0)).get_epsilon(DELTA)
    ours = composed_above([events[0], selection(law, events[1])], DELTA)
    assert ours == pytest.approx(theirs, rel=0.02)


@by_law
def test_no_selection_among_numbers_gives_away_more(law):
    """Against integration: the largest of a number of draws of N(0, 1) or N(1, 1) has a known density."""
    probabilities = np.array([float(one) for one in itertools.islice(law.probabilities(), 4000)])
    numbers = np.arange(len(probabilities))

    def density(values, shift):
        # The derivative of E[F^K], by Horner's rule.
        slope = np.polynomial.polynomial.polyval(scipy.stats.norm.cdf(values - shift), (probabilities * numbers)[1:])
        return slope * scipy.stats.norm.pdf(values - shift)

    values = np.linspace(-12, 13, 10_001)
    step = values[1] - values[0]
    with_one, without = density(values, 1.0), density(values, 0.0)
    bounds = composed_bounds([selection(law, GaussianEvent(1.0))], DELTA)
    for one, other in ((with_one, without), (without, with_one)):
        delta = np.maximum(one - math.exp(bounds.upper) * other, 0).sum() * step
        assert delta <= DELTA
    assert bounds.lower < bounds.upper
    alone = composed_bounds([GaussianEvent(1.0)], DELTA).upper
    assert alone < bounds.upper
    assert 0.9 * alone < bounds.lower <= alone * (1 + 1e-6)


def test_what_is_released_beside_a_selection_is_composed_with_it():
    law = TrialsLaw(TNB, 10.0, 1.0)
    alone = composed_above([selection(law)], DELTA)
    before = composed_above([GaussianEvent(3.0)], DELTA)
    both = composed_above([selection(law), GaussianEvent(3.0)], DELTA)
    assert max(alone, before) < both < alone + before
    vocabulary = StatedEvent(0.0, DELTA / 2)
    assert composed_above([selection(law), vocabulary], DELTA) == composed_above([selection(law)], DELTA / 2) > alone
    assert composed_above([selection(law), StatedEvent(0.0, DELTA)], DELTA) == math.inf
    assert composed_above([selection(law), StatedEvent(1.0, 0.0)], DELTA) >= alone + 1
    truncated = GaussianEvent(2.0, 10, 0.01, 1000, 30)
    assert composed_above([selection(law), truncated], DELTA) > alone
    assert composed_above([selection(law), selection(law)], DELTA) > both


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("uniform", 3.0), "must be one of"),
        ((POISSON, 1.0), "expected_trials is 1.0, but must lie above 1"),
        ((POISSON, math.nan), "expected_trials is nan"),
        ((POISSON, 3.0, 1.0), "selection_eta is 1.0 with poisson"),
        ((TNB, 3.0), "selection_eta is None with trunc"),
        ((TNB, 3.0, -0.5), "selection_eta is -0.5, but must lie between"),
        ((TNB, 1e9, 1.0), "10000 at most"),
    ],
)
def test_what_is_no_law_is_refused(values, message):
    with pytest.raises(ConfigurationError, match=message):
        TrialsLaw(*values)
    with pytest.raises(ConfigurationError, match="truncated rounds"):
        selection(LAWS[0], GaussianEvent(2.0, 10, 0.01, 1000, 30))
