import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.origins.private_relevance import contribution, counted_relevance, noised_relevance
from fedlm.fl_core.privacy.origins.private_words import COUNT_NORM
from fedlm.fl_core.privacy.origins.relevance_origin import (
    PrivateRelevance,
    Relevance,
    RelevanceOrigin,
    fingerprint_of_count,
    read_relevance,
)
from fedlm.fl_core.privacy.promise.counts.relevance_spending import plan_relevance, relevance_events
from fedlm.fl_core.privacy.promise.guarantee import gaussian_epsilon

SHARES = st.lists(st.floats(0, 1), min_size=1, max_size=60).map(np.array)


@given(SHARES, st.integers(1, 50))
def test_a_client_adds_no_more_than_the_norm(shares, most):
    added = contribution(shares, most)
    assert sum(int(value) ** 2 for value in added) <= COUNT_NORM**2
    assert (added >= 0).all()


def test_a_client_of_many_tokens_adds_no_more_than_others():
    added = contribution(np.ones(100_000), 100)
    assert sum(int(value) ** 2 for value in added) <= COUNT_NORM**2
    # What it may add is used: shares of as many tokens as count fully are not scaled down.
    full = contribution(np.repeat([1.0, 0.0], 100), 100)
    assert sum(int(value) ** 2 for value in full) >= 0.99 * COUNT_NORM**2
    assert full[0] >= 0.999 * full[-1]
    assert contribution(np.zeros(5), 100)[:-1].tolist() == [0] * 5


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-8), (4.0, 1e-6)])
def test_the_noise_is_the_least_that_the_guarantee_needs(epsilon, delta):
    plan = plan_relevance(epsilon, delta, 100)
    assert gaussian_epsilon(plan.noise_multiplier, 1.0, delta) <= epsilon
    assert gaussian_epsilon(plan.noise_multiplier * 0.999, 1.0, delta) > epsilon


def test_estimates_are_near_the_shares():
    """20 counts of 5,000 clients: none is off by more than 6 standard deviations of its noise, by chance once in 10^7
    such tests; the seed is fixed."""
    true = np.array([1.0, 0.5, 0.1, 0.02, 0.0])
    rng = np.random.default_rng(0)
    plan, clients = plan_relevance(1.0, 1e-6, 4), 5000
    shares = (rng.random((clients, len(true))) < true).astype(float)
    sums = sum(contribution(row, plan.tokens_per_unit) for row in shares)
    noise = plan.noise_multiplier * 5**0.5 / clients
    draw = random.Random(3).randrange
    for _ in range(4):
        found = np.array(noised_relevance(sums, plan, draw))
        expected = np.clip(shares.mean(axis=0), noise, 1)
        assert np.all(np.abs(found - expected) <= 8 * noise)
        assert np.all((found > 0) & (found <= 1))
    assert noised_relevance(sums, plan) != noised_relevance(sums, plan)


def test_a_token_that_is_lost_in_the_noise_counts_for_one_standard_deviation():
    plan = plan_relevance(1.0, 1e-6, 4)
    sums = 1000 * contribution(np.array([1.0, 0.0]), 4)
    low = [noised_relevance(sums, plan, random.Random(seed).randrange)[1] for seed in range(20)]
    deviation = plan.noise_multiplier * 5**0.5 / 1000
    assert min(low) == pytest.approx(deviation, rel=0.1)
    assert all(0 < value <= 1 for value in noised_relevance(0 * sums, plan)), "also where nobody is counted"
    assert counted_relevance(np.array([10, 5, 0]), 10) == (1.0, 0.5, 0.05), "without noise they are shares"


PRIVATE = RelevanceOrigin("private", "a", plan_relevance(1.0, 1e-6, 100))


def test_each_count_is_spent_once():
    other = RelevanceOrigin("private", "b", PRIVATE.private)
    public = RelevanceOrigin("public", "c")
    events = relevance_events([PRIVATE, None, other, PRIVATE, public], "client: one")
    assert [event.noise_multiplier for event in events] == [PRIVATE.private.noise_multiplier] * 2
    of_examples = relevance_events([PRIVATE], "example: one")
    assert of_examples[0].noise_multiplier == pytest.approx(PRIVATE.private.noise_multiplier / 2**0.5)


@pytest.mark.parametrize("bad", [{"epsilon": 0.0}, {"epsilon": 1000.0}, {"delta": 2.0}, {"tokens_per_unit": 0}])
def test_what_cannot_be_planned_is_refused(bad):
    with pytest.raises(ConfigurationError):
        plan_relevance(**{"epsilon": 1.0, "delta": 1e-6, "tokens_per_unit": 10} | bad)
    with pytest.raises(ConfigurationError, match="positive and finite"):
        PrivateRelevance(1.0, 1e-6, float("inf"), 10)


VALUES = (1.0, 0.25, 0.1)


def relevance(origin=None, count=None):
    origin = origin or RelevanceOrigin("public", fingerprint_of_count(VALUES))
    return Relevance(VALUES, origin, "tokenizer", None, "example", 8, "packed", count)


def private_relevance(private, count="a"):
    return relevance(RelevanceOrigin("private", fingerprint_of_count(VALUES, private, count), private), count)


def test_files_are_read_back(tmp_path):
    for kind in ("public", "training data"):
        written = relevance(RelevanceOrigin(kind, fingerprint_of_count(VALUES)))
        written.write(tmp_path / "relevance.json")
        assert read_relevance(tmp_path / "relevance.json") == written
    private_relevance(PRIVATE.private).write(tmp_path / "relevance.json")
    assert read_relevance(tmp_path / "relevance.json") == private_relevance(PRIVATE.private)
    assert RelevanceOrigin.from_json(None) is None
    assert RelevanceOrigin.from_json(PRIVATE.as_json()) == PRIVATE


def test_which_count_it_is_follows_from_the_numbers(tmp_path):
    relevance().write(tmp_path / "relevance.json")
    record = json.loads((tmp_path / "relevance.json").read_text())
    record["relevance"][1] = 0.26
    (tmp_path / "relevance.json").write_text(json.dumps(record))
    assert read_relevance(tmp_path / "relevance.json").origin.sha256 != relevance().origin.sha256


def test_private_counts_of_the_same_numbers_are_two(tmp_path):
    """Those of few people are all 1, whatever was spent."""
    more = plan_relevance(2.0, 1e-6, 100)
    files = [private_relevance(PRIVATE.private), private_relevance(PRIVATE.private, "b"), private_relevance(more)]
    for number, one in enumerate(files):
        one.write(tmp_path / str(number))
    origins = [read_relevance(tmp_path / str(number)).origin for number in range(3)]
    events = relevance_events([*origins, origins[0]], "client: one")
    spent = [PRIVATE.private.noise_multiplier] * 2 + [more.noise_multiplier]
    assert [event.noise_multiplier for event in events] == spent


OPEN, COUNTED = relevance(), private_relevance(PRIVATE.private)
NAMELESS = relevance(RelevanceOrigin("private", fingerprint_of_count(VALUES), PRIVATE.private))


def guarantee_of(record):
    return record["relevance_origin"]["guarantee"]


@pytest.mark.parametrize(
    ("written", "change", "found"),
    [
        (OPEN, lambda record: record.update(count=3), "count is 3"),
        (OPEN, lambda record: record.pop("vocabulary_sha256"), "vocabulary_sha256 is missing"),
        (OPEN, lambda record: record.update(format="x"), "has not the format"),
        (OPEN, lambda record: record.update(relevance=[1.0, 0]), "token 1 is 0"),
        (OPEN, lambda record: record.update(relevance=[True]), "token 0 is True"),
        (OPEN, lambda record: record.update(relevance="x"), "must be a list"),
        (OPEN, lambda record: record.update(unit="word"), "unit is 'word'"),
        (OPEN, lambda record: record["relevance_origin"].update(kind="given"), "relevance_origin: not the origin"),
        (OPEN, lambda record: record["relevance_origin"].update(kind="private"), "relevance_origin: not the origin"),
        (OPEN, lambda record: record.update(relevance_origin=[]), "relevance_origin: "),
        (COUNTED, lambda record: record["relevance"].__setitem__(1, 0.26), "not what was counted privately"),
        (COUNTED, lambda record: guarantee_of(record).update(noise_multiplier=1e3), "not what was counted privately"),
        (COUNTED, lambda record: record.update(count="b"), "not what was counted privately"),
        # A private count is not known by its numbers alone.
        (NAMELESS, lambda record: None, "count is missing"),
    ],
)
def test_damaged_and_edited_files_are_refused(tmp_path, written, change, found):
    path = tmp_path / "relevance.json"
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_relevance(path)
    written.write(path)
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(ConfigurationError, match=f"^{path}: .*{found}"):
        read_relevance(path)
