import json
import sys

import jax
import pytest

from benchmarks.clipping import against_peers, recommenders
from benchmarks.clipping.measurement import Candidate, Started, finalists, memory_limit, summarize, sweep
from benchmarks.clipping.steps import Setting, compile_step, compiled_memory, draw_batch
from benchmarks.machine import measured_before
from fedlm.models.registry import create_model


def candidate(kind, microbatch, seconds, devices=1, **facts):
    return Candidate(kind, microbatch, devices, lambda: Started(lambda: seconds, facts))


def test_a_sweep_stops_where_larger_microbatches_only_get_slower():
    times = {1: 2.0, 2: 1.0, 4: 1.6, 8: 1.7, 16: 0.5}
    one = [candidate("plain", size, seconds) for size, seconds in times.items()]
    two = [candidate("plain", size, 0.9 * seconds, devices=2) for size, seconds in times.items()]
    trials = sweep([*one, *two])
    assert [(trial.candidate.devices, trial.candidate.microbatch) for trial in trials] == [
        *((1, size) for size in (1, 2, 4, 8)),
        *((2, size) for size in (1, 2, 4, 8)),
    ]
    assert [trial.candidate.name for trial in finalists(trials)] == [
        "plain, 2 at a time, 2 devices",
        "plain, 2 at a time, 1 device",
    ]


def test_ratios_are_taken_pass_by_pass_of_the_best_setting_of_each_kind():
    plain = sweep([candidate("plain", 1, 1.0, memory_mib=10.0), candidate("plain", 2, 1.2, memory_mib=20.0)])
    ghost = sweep([candidate("ghost", 2, 2.0, memory_mib=30.0)])
    seconds = {
        "plain, 1 at a time, 1 device": [2.0, 1.0, 1.0],
        "plain, 2 at a time, 1 device": [2.0, 2.0, 2.0],
        "ghost, 2 at a time, 1 device": [3.0, 3.0, 2.0],
    }
    summary = summarize([*plain, *ghost], seconds)
    assert summary["best"]["plain"]["microbatch"] == 1
    assert summary["over_plain"] == {"ghost": {"min": 1.5, "median": 2.0, "max": 3.0}}
    assert summary["memory_over_plain"] == {"ghost": {"best_settings": 3.0, "same_setting": 1.5}}


def test_a_private_step_keeps_to_the_memory_if_it_can():
    plain = sweep([candidate("plain", 1, 1.0, memory_mib=10.0)])
    large, small = candidate("bookkeeping", 4, 1.0, memory_mib=14.0), candidate("bookkeeping", 1, 1.5, memory_mib=12.0)
    for candidates, best in (([small, large], 1), ([large], 4)):
        found = sweep(candidates)
        assert finalists(found, memory_limit(plain))[0].candidate.microbatch == best
        seconds = {trial.candidate.name: [trial.seconds] for trial in [*plain, *found]}
        assert summarize([*plain, *found], seconds)["best"]["bookkeeping"]["microbatch"] == best


def test_a_case_takes_the_place_of_an_earlier_one(tmp_path):
    first, second = ({"model": name, "examples": 2, "length": 4, "best": {}} for name in "ab")
    again = second | {"best": {"plain": {}}}
    assert against_peers.with_case([first, second], again) == [first, again]
    assert against_peers.with_case([first], second) == [first, second]
    path, record = tmp_path / "against_peers.json", {"machine": {"cores": 2}, "setting": "x"}
    assert measured_before(path, record, "cases", []) == []
    path.write_text(json.dumps(record | {"cases": [first]}))
    assert measured_before(path, record, "cases", []) == [first]
    assert measured_before(path, record | {"machine": {"cores": 4}}, "cases", []) == []


def test_jax_privacy_is_also_timed_at_its_ends():
    seconds = {1: 5.0, 2: 1.0, 4: 2.0, 8: 2.0, 16: 4.0}
    names = [
        one.candidate.microbatch
        for one in finalists(sweep(candidate("jax_privacy", *item) for item in seconds.items()))
    ]
    assert names == [2, 4, 1, 8]


@pytest.mark.long
def test_the_command_measures_and_draws(monkeypatch, tmp_path):
    words = (
        "--models transformer_tiny --shapes 2x4 --microbatches 1 --passes 1 --vocabulary 32 --kinds plain bookkeeping"
    )
    # The devices of this process are chosen already.
    monkeypatch.setattr(against_peers, "CORES", jax.device_count())
    monkeypatch.setattr(sys, "argv", ["against_peers", *words.split(), "--without-peers", "--results", str(tmp_path)])
    against_peers.main()
    (case,) = json.loads((tmp_path / "against_peers.json").read_text())["cases"]
    assert case["over_plain"]["bookkeeping"]["median"] > 0
    assert case["memory_over_plain"]["bookkeeping"]["same_setting"] > 1
    assert (tmp_path / "against_peers.png").stat().st_size > 0


@pytest.mark.parametrize("bytes_of_an_example", [50, 1000, 10_000, 10**6])
def test_the_greatest_batch_fits_and_little_more_does_not(monkeypatch, bytes_of_an_example):
    monkeypatch.setattr(recommenders, "compiled_memory", lambda model, examples, *_: examples * bytes_of_an_example)
    found = recommenders.greatest_batch(recommenders.SHAPES[0], "plain", memory=10**7)
    exact = 10**7 // bytes_of_an_example
    assert found <= exact
    if exact < recommenders.SMALLEST:
        assert found == 0
    else:
        assert found >= min(exact / recommenders.NEAR - recommenders.SMALLEST, recommenders.LARGEST / 2)


@pytest.mark.long
def test_a_step_that_is_not_computed_is_planned_as_one_that_is():
    model, setting = create_model("transformer_tiny", 50), Setting("bookkeeping", 4, 1)
    computed = compile_step(model, model.init(jax.random.key(0)), draw_batch(model, 4, 6), setting)
    assert compiled_memory(model, 4, 6, setting) == computed.memory_bytes
