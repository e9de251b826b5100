"""Killing a private run at random instants: what can have been seen keeps the promise.

`FEDLM_KILLS` sets how many kills there are; the default keeps the suite quick.
"""

import json
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest

from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS, make_noise
from fedlm.fl_core.privacy.noise.noise_source import noise_from
from fedlm.fl_core.privacy.promise.guarantee import account
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.statement import state
from fedlm.fl_core.runs.files.checkpoints import Checkpoints
from tests.simulations.experiments import toy_private_run as toy

KILLS = int(os.environ.get("FEDLM_KILLS", "12"))


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([toy.__name__])
    return context


def run_and_kill(processes, directory, mechanism, rng):
    """Start the run again and again until the kills are used up and it gets to its end; returns how many there were."""
    kills = 0
    while not (directory / "finished").exists():
        process = processes.Process(target=toy.go_on, args=(directory, mechanism))
        process.start()
        if kills < KILLS // len(MECHANISMS):
            # Spread over start, resuming and running: a run as a whole takes a few seconds.
            process.join(float(rng.uniform(0.0, 1.0) ** 2 * 4.0))
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
        process.join(120)
        assert process.exitcode in (0, -signal.SIGKILL)
    return kills


def notes_of(directory):
    path = directory / "notes.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def seen_sums(notes):
    """{(generation, round): sums} of everything that was, perhaps only in part, written to a checkpoint."""
    seen = {}
    for note in notes:
        for number, sums in note["sums"].items():
            if int(number) < note["done"]:
                seen.setdefault((note["generation"], int(number)), set()).add(tuple(sums))
    return seen


def noise_of(directory, mechanism, rounds, generation, first, end):
    secret = (directory / f"run/privacy/noise-secret-{generation}").read_bytes()
    made = make_noise(toy.plan_of(mechanism, rounds), first, end)
    like = {"delta": {"x": np.zeros(toy.WIDTH, np.float32)}}
    draw, noise = noise_from(secret, like), {}
    state = made.init(like)
    for number in range(first, end):
        drawn, state = made.next(state, draw)
        noise[number] = np.asarray(drawn["delta"]["x"]) * toy.NOISE * toy.CLIP
    return noise


def check(directory, mechanism, rounds=toy.ROUNDS):
    ledger, notes = PrivacyLedger(directory / "run/privacy/ledger.jsonl"), notes_of(directory)
    seen = seen_sums(notes)
    assert all(len(sums) == 1 for sums in seen.values()), "the same noise was seen over different sums"

    releases = [record["rounds"] for record in ledger.records if record["kind"] == "release"]
    assert releases == sorted(set(releases))
    generations = ledger.generations
    secrets = {path.read_bytes() for path in (directory / "run/privacy").glob("noise-secret-*")}
    assert len(secrets) >= len(generations), "noise began anew with an old secret"
    for generation, number in seen:
        first, end = generations[generation]
        assert first <= number < end, "a round that may have been seen is not in the ledger"

    # What was released is the sum of all that the ledger says, once each.
    intents, expected = {}, np.zeros(toy.WIDTH)
    for note in notes:
        intents[note["generation"], note["done"]] = note["sums"]
    noises = [noise_of(directory, mechanism, rounds, index, *extent) for index, extent in enumerate(generations)]
    for generation, (first, _) in enumerate(generations):
        before = first
        for record in ledger.records:
            if record["kind"] == "release" and before < record["rounds"] <= generations[generation][1]:
                sums = intents[generation, record["rounds"]]
                for number in range(before, record["rounds"]):
                    expected -= (np.array(sums[str(number)]) + noises[generation][number]) / toy.GOAL
                before = record["rounds"]
    with Checkpoints(directory / "run/checkpoints") as checkpoints:
        params = checkpoints.restore_arrays(checkpoints.latest_round())["server"]["params"]["x"]
    np.testing.assert_allclose(params, expected, atol=1e-4)

    truth = {}
    for generation, number in seen:
        first, end = truth.get(generation, (number, number + 1))
        truth[generation] = (min(first, number), max(end, number + 1))
    spent, least = state(ledger).own, account(ledger.plan, 1e-6, [truth[key] for key in sorted(truth)])
    assert spent.epsilon >= least.epsilon * (1 - 1e-9)
    assert spent.epsilon <= account(ledger.plan, 1e-6).epsilon * (1 + 1e-6)

    rows = [json.loads(line)["round"] for line in (directory / "run/metrics.jsonl").read_text().splitlines()]
    assert rows == sorted(set(rows)), "a round was recorded twice"
    assert set(rows) == released_rounds(ledger), "rounds were recorded that were not released, or the other way around"


def released_rounds(ledger):
    rounds, before = set(), 0
    for record in ledger.records:
        if record["kind"] == "release":
            rounds |= set(range(before, record["rounds"]))
        before = record.get("rounds", before) if record["kind"] != "intent" else before
    return rounds


@pytest.mark.long
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_instant_of_a_crash_breaks_the_promise(tmp_path, processes, mechanism):
    started = time.monotonic()
    rng = np.random.default_rng(int(started * 1e6))
    kills, runs = 0, 0
    while kills < KILLS // len(MECHANISMS):
        directory = tmp_path / str(runs)
        directory.mkdir()
        kills += run_and_kill(processes, directory, mechanism, rng)
        check(directory, mechanism)
        runs += 1
    print(f"{mechanism}: {kills} kills in {runs} runs, {time.monotonic() - started:.0f} s")


PLACES = ("before the checkpoint", "in the checkpoint", "after the checkpoint")
# Enough for four participations of one client, and an end between releases.
FEW_ROUNDS = 17


@pytest.mark.parametrize(
    ("mechanism", "place"),
    [
        pytest.param(name, place, marks=[pytest.mark.long] * (name not in ("tree", "banded")))
        for name in MECHANISMS
        for place in PLACES
    ],
)
def test_an_end_at_each_place_of_a_release(tmp_path, mechanism, place, monkeypatch):
    """The same without chance: the run ends around the third release."""

    class EndError(Exception):
        pass

    real = toy.RunFolder.save

    def save(self, rounds, state, about):
        if rounds == 9 and place == "before the checkpoint":
            raise EndError
        if rounds == 9 and place == "in the checkpoint":
            partial = self.directory / "checkpoints/9.orbax-checkpoint-tmp"
            partial.mkdir()
            (partial / "half").write_bytes(b"half a model")
            raise EndError
        real(self, rounds, state, about)
        if rounds == 9 and place == "after the checkpoint":
            raise EndError

    monkeypatch.setattr(toy.RunFolder, "save", save)
    with pytest.raises(EndError):
        toy.go_on(tmp_path, mechanism, FEW_ROUNDS)
    monkeypatch.setattr(toy.RunFolder, "save", real)
    toy.go_on(tmp_path, mechanism, FEW_ROUNDS)
    check(tmp_path, mechanism, FEW_ROUNDS)
    ledger = PrivacyLedger(tmp_path / "run/privacy/ledger.jsonl")
    lost = place != "after the checkpoint"
    assert ledger.generations == ([(0, 9), (9, ledger.generations[-1][1])] if lost else [(0, FEW_ROUNDS)])
    assert released_rounds(ledger) >= set(range(6)) | set(range(9, FEW_ROUNDS - toy.EVERY + 1))
