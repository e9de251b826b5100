"""Users whose examples are sampled one by one: against the dp-accounting library, closed forms and drawn outcomes."""

import json
import math

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_mixture_gaussian_mechanism
from scipy.stats import binom

from fedlm.commands.cli import main
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting.composition import GaussianEvent, epsilon_bounds
from fedlm.fl_core.privacy.accounting.loss_pairs import DIRECTIONS, MixedLoss
from fedlm.fl_core.privacy.accounting.loss_sums import lower_epsilon, upper_delta, upper_epsilon
from fedlm.fl_core.privacy.accounting.sampled_examples import BinomialMixturePair, sampled_examples_bounds


@pytest.mark.long
@pytest.mark.parametrize(
    ("noise", "examples", "probability", "steps", "delta"),
    [(2.0, 4, 0.05, 50, 1e-5), (1.0, 1, 0.02, 200, 1e-6), (3.0, 3, 0.5, 10, 1e-4)],
)
def test_bounds_lie_where_dp_accounting_has_its_own(noise, examples, probability, steps, delta):
    """Its optimistic estimate takes minutes."""
    counts = np.arange(examples + 1)
    weights = binom.pmf(counts, examples, probability)
    one = from_mixture_gaussian_mechanism(noise, counts, weights, value_discretization_interval=1e-3)
    theirs = one.self_compose(steps).get_epsilon_for_delta(delta)
    ours = sampled_examples_bounds(noise, examples, probability, steps=steps, delta=delta)
    assert ours.upper * 0.999 <= ours.lower <= ours.upper
    assert ours.lower <= theirs * (1 + 1e-6)
    assert ours.upper == pytest.approx(theirs, rel=2e-3)


def test_a_single_example_is_a_sampled_gaussian():
    found = sampled_examples_bounds(0.8, 1, 0.01, steps=300, delta=1e-12)
    expected = epsilon_bounds([GaussianEvent(0.8, 300, 0.01)], 1e-12)
    assert found.upper == pytest.approx(expected.upper, rel=1e-3)
    assert found.lower <= expected.upper
    assert expected.lower <= found.upper


def test_examples_drawn_apart_cost_no_more_than_all_at_once_and_no_less_than_one():
    """A user whose examples were drawn all together would move the sum by all of them with the same probability."""
    apart = sampled_examples_bounds(4.0, 8, 0.02, steps=100, delta=1e-6)
    together = epsilon_bounds([GaussianEvent(4.0 / 8, 100, 0.02)], 1e-6)
    alone = epsilon_bounds([GaussianEvent(4.0, 100, 0.02)], 1e-6)
    assert alone.upper < apart.lower < apart.upper < together.lower


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_drawn_outcomes_have_the_delta_of_the_bounds(direction):
    """By 400,000 draws of three steps; a false alarm is as rare as five standard deviations."""
    noise, examples, probability, steps, delta = 1.5, 6, 0.2, 3, 0.02
    pair = BinomialMixturePair(1 / noise, probability, examples, direction)
    losses = [(steps, MixedLoss(((1.0, pair),)))]
    upper, lower = upper_epsilon(losses, delta), lower_epsilon(losses, delta)
    draws = np.random.default_rng(7)
    outcomes = draws.normal(size=(400_000, steps))
    if direction == "remove":
        outcomes += draws.binomial(examples, probability, size=outcomes.shape) / noise
    counts = np.arange(examples + 1)
    shifts = counts / noise
    ratio = np.log(
        np.sum(binom.pmf(counts, examples, probability) * np.exp(outcomes[..., None] * shifts - shifts**2 / 2), axis=-1)
    )
    total = np.sum(ratio if direction == "remove" else -ratio, axis=1)
    for epsilon, at_least, at_most in ((upper, 0.0, delta), (lower, delta, 1.0)):
        parts = -np.expm1(np.minimum(epsilon - total, 0.0))
        error = 5 * float(np.std(parts)) / math.sqrt(len(parts))
        assert at_least - error <= float(np.mean(parts)) <= at_most + error
    assert upper_delta(losses, upper) == pytest.approx(delta, rel=1e-2)


def test_the_rounding_of_losses_is_counted_once_a_step():
    noise, examples, probability, steps, delta = 1e3, 4, 0.1, 10**5, 1e-3
    found = sampled_examples_bounds(noise, examples, probability, steps=steps, delta=delta)
    pairs = [BinomialMixturePair(1 / noise, probability, examples, direction) for direction in DIRECTIONS]
    computed = max(upper_epsilon([(steps, MixedLoss(((1.0, pair),)))], delta) for pair in pairs)
    rounding = max(pair.rounding(*pair.range(1e-40)) for pair in pairs)
    assert found.upper >= computed + steps * rounding
    assert sampled_examples_bounds(noise, examples, probability, steps=1, delta=0.1) == (0, 0)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("shift", "probability", "examples"), [(0.5, 0.05, 4), (0.01, 1e-6, 256), (3.0, 0.9, 16)])
def test_outcomes_undo_losses_and_masses_add_up(shift, probability, examples, direction):
    pair = BinomialMixturePair(shift, probability, examples, direction)
    begin, end = pair.range(1e-12)
    u = np.linspace(max(begin, -4.0), min(end, 4.0), 50)
    loss = pair.loss(u)
    assert np.all(np.diff(loss) >= 0)
    np.testing.assert_allclose(pair.loss(pair.outcome(loss)), loss, atol=1e-9)
    assert pair.below(begin) <= 1e-12 * (1 + 1e-9)
    assert pair.above(end)[0] <= 1e-12 * (1 + 1e-9)
    assert pair.below(0.3) + pair.above(0.3)[0] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((1.0, 0, 0.1, 1), "examples_per_user is 0"),
        ((1.0, 257, 0.1, 1), "256 at most"),
        ((1.0, 2, 0.0, 1), "sampling_probability is 0.0"),
        ((1.0, 2, 1.0, 1), "sampling_probability is 1.0"),
        ((1.0, 2, 0.1, 0), "steps is 0"),
        ((0.01, 2, 0.1, 1), "must be at least 0.04"),
        ((20.0, 256, 1e-3, 1), "does not tell the outcomes exactly enough"),
        ((math.nan, 2, 0.1, 1), "noise_multiplier is nan"),
        ((math.inf, 2, 0.1, 1), "1e\\+10 at most"),
    ],
)
def test_numbers_out_of_range_are_refused(words, message):
    noise, examples, probability, steps = words
    with pytest.raises(ConfigurationError, match=message):
        sampled_examples_bounds(noise, examples, probability, steps=steps, delta=1e-6)


def test_the_command_states_what_is_computed(capsys):
    words = ["account", "examples", "--examples-per-user", "4", "--sampling-probability", "0.05", "--steps", "10"]
    words += ["--noise-multiplier", "2", "--delta", "1e-5"]
    assert main([*words, "--json"]) == 0
    statement = json.loads(capsys.readouterr().out)
    bounds = sampled_examples_bounds(2.0, 4, 0.05, steps=10, delta=1e-5)
    assert (statement["epsilon"], statement["epsilon_lower"]) == bounds
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "unit  user: at most 4 examples" in said
    assert "add-or-remove" in said
    assert main([*words, "--examples-per-user", "1000"]) == 2
    assert "--examples-per-user is 1000" in capsys.readouterr().err
