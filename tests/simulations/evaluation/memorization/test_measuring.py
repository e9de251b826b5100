"""Overfit runs give their training sequences away, and fresh models do not."""

import json

import numpy as np
import pytest

from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.store.writer import StoreWriter
from fedlm.simulations.evaluation.memorization.measuring import MemorizationSettings, measure_memorization
from fedlm.simulations.evaluation.memorization.sequences import Candidates, choose_lengths
from fedlm.simulations.pretraining.batches.opening_units import open_units
from tests.simulations.evaluation.memorization.overfit_run import write_run
from tests.simulations.pretraining.small_stores import TOKENIZER


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """8 training sequences of 20 words and one of 2, and 9 held-out ones."""
    path, rng = tmp_path_factory.mktemp("data") / "store", np.random.default_rng(0)
    with StoreWriter(path, "made up", TOKENIZER) as writer:
        for split in ("train", "heldout"):
            for client in range(4):
                writer.add(split, f"{split}{client}", list(rng.integers(4, TOKENIZER.vocabulary_size, (2, 20))))
            writer.add(split, f"{split} short", [[5, 6]])
    return TokenStore.open(path)


@pytest.fixture(scope="module")
def fresh_folder(store, tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    return write_run(runs / "fresh", store, runs / "cache", steps=0)


def measure(folder, tmp_path, **settings):
    return measure_memorization(folder, None, cache=tmp_path / "cache", settings=MemorizationSettings(**settings))


@pytest.mark.long
def test_an_overfit_model_gives_every_sequence_away(store, tmp_path, fedlm_here):
    folder, plot = write_run(tmp_path / "overfit", store, tmp_path / "cache", steps=150), tmp_path / "rates.png"
    words = "--prefix 6 3 --suffix 12 --references 200 --devices 1 --json".split()
    places = f"--checkpoint={folder}", f"--cache={tmp_path / 'cache'}", f"--plot={plot}"
    result = fedlm_here("memorization", *words, *places)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert "sequences/s" in result.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert [row["prefix"] for row in found["extraction"]] == [3, 6]
    for row in found["extraction"]:
        assert (row["train"]["exact"]["count"], row["train"]["exact"]["of"]) == (8, 8)
        assert row["train"]["approximate"]["rate"] == 1
        assert row["heldout"]["exact"]["count"] == 0
        assert row["beyond_heldout"]["exact"]["difference"] == 1
        assert row["beyond_heldout"]["exact"]["low"] > 0.5
    assert found["sequences"]["train"] == {"seen": 9, "long_enough": 8, "tested": 8}
    assert found["privacy"] == "NOT PRIVATE"
    once, often = found["canaries"]["by_repeats"]
    assert (once["repeats"], often["repeats"], often["canaries"]) == (1, 8, 3)
    assert often["mean"] == pytest.approx(found["canaries"]["largest_by_rank"])
    assert often["extrapolated_median"] > found["canaries"]["largest_by_rank"]


@pytest.mark.long
def test_a_fresh_model_gives_nothing_away(store, tmp_path):
    folder = write_run(tmp_path / "fresh", store, tmp_path / "cache", 0, canaries=20)
    found = measure(folder, tmp_path, references=200)
    assert found["extraction"][0]["train"]["exact"]["count"] == 0
    assert found["extraction"][0]["beyond_heldout"]["exact"]["low"] < 0
    # Half of 22 tokens each.
    assert (found["extraction"][0]["prefix"], found["suffix"]) == (11, 11)
    # 40 canaries of whose exposures each exceeds 4.5 with probability 2^-4.5.
    exposures = [bits for row in found["canaries"]["by_repeats"] for bits in row["exposures"]]
    assert np.mean(np.array(exposures) > 4.5) < 0.5


@pytest.mark.long
def test_runs_without_canaries_or_held_out_text_say_so(store, tmp_path):
    folder = write_run(tmp_path / "fresh", store, tmp_path / "cache", 0, canaries=0)
    found = measure(folder, tmp_path, split="heldout", examples=3)
    assert found["canaries"] is None
    assert found["sequences"] == {"heldout": {"seen": 9, "long_enough": 8, "tested": 3}}
    assert found["extraction"][0]["beyond_heldout"] is None


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"prefix": (20,), "suffix": 6}, ConfigurationError, "26 tokens together, but .* sequences have at most 25"),
        ({"prefix": (20,), "suffix": 5}, DataError, "none of 9 sequences has 25 tokens.*the longest has 22"),
        ({"prefix": (0,)}, ConfigurationError, "prefix has 0"),
        ({"suffix": 0}, ConfigurationError, "suffix is 0"),
        *(({name: -1}, ConfigurationError, f"{name} is -1") for name in ("examples", "references", "seed")),
        ({"split": "validation"}, ConfigurationError, "split is 'validation', but must be one of train"),
        ({"split": "test"}, DataError, "the split 'test' has no examples"),
    ],
)
def test_mistakes_are_named(fresh_folder, tmp_path, settings, error, message):
    with pytest.raises(error, match=message):
        measure(fresh_folder, tmp_path, **settings)


def test_lengths_that_are_not_given_suit_the_sequences():
    counts = np.array([200] * 30 + [21] * 50 + [5] * 20)
    assert choose_lengths(counts, 199, prefixes=(), suffix=None, examples=30) == ((50,), 50)
    assert choose_lengths(counts, 199, prefixes=(), suffix=None, examples=40) == ((10,), 10)
    assert choose_lengths(counts, 199, prefixes=(4, 15), suffix=None, examples=1000) == ((4, 15), 6)
    assert choose_lengths(counts, 199, prefixes=(), suffix=4, examples=1000) == ((17,), 4)
    assert choose_lengths(np.array([2]), 1, prefixes=(), suffix=None, examples=10) == ((1,), 1)


def test_candidates_are_sequences_of_the_split(store, tmp_path):
    units = open_units(
        store, "train", 10, unit="user", packing="packed", sequences_per_unit=9, seed=0, cache=tmp_path / "cache"
    )
    candidates = Candidates(units, seed=1)
    tokens, weight = units.sequences(np.arange(units.count))
    assert len(candidates.counts) == weight.sum() == 4 * 5 + 1
    found = candidates.take(11, 100)
    whole = tokens[(tokens != 0).all(-1)]
    assert sorted(map(tuple, found)) == sorted(map(tuple, whole))
    assert {tuple(row) for row in candidates.take(9, 5)} <= {tuple(row[:9]) for row in whole}
