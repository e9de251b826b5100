"""Each measurement's command runs at sizes that say nothing, and writes its table and its picture."""

import importlib
import json
import sys

import jax
import pytest

from benchmarks.deployment import check_ins, large_model, rounds
from benchmarks.deployment.shapes import Shape, sizes_of
from benchmarks.security import poisoning

COMMANDS = {
    "simulation.against_peers": "--models cifg_tiny --clients 2 --passes 1 --contestants engine tff",
    "simulation.client_algorithms": "--models cifg_tiny --clients 2 --passes 1 --algorithms fedprox",
    "simulation.whole_runs": "--models cifg_tiny --passes 1 --rounds 2 --data {store}",
    "privacy.noise_cost": "--parameters 20 --mechanisms tree blt --block 2 --passes 1",
    "privacy.round_cost": "--models cifg_tiny --clients 2 --examples 4 --passes 1",
    "deployment.secure_sums": "--clients 20 --parameters 1000",
    "deployment.virtual_clients": "--data {store} --clients 12 --model cifg_tiny",
    "clipping.against_peers": "--models transformer_tiny --shapes 2x4 --microbatches 1 --passes 1 --vocabulary 32"
    " --kinds plain bookkeeping --without-peers",
}


@pytest.mark.parametrize(
    "module",
    [
        # It starts a process for each contestant.
        pytest.param(name, marks=pytest.mark.thorough if name == "simulation.against_peers" else pytest.mark.long)
        for name in COMMANDS
    ],
)
def test_a_command_measures_and_writes_what_it_found(module, small_store, tmp_path, monkeypatch, capsys):
    options = COMMANDS[module].format(store=small_store).split()
    monkeypatch.setattr(sys, "argv", [module, *options, "--results", str(tmp_path)])
    # The devices of this process are chosen already.
    monkeypatch.setattr(jax.config, "update", lambda *setting: None)
    importlib.import_module(f"benchmarks.{module}").main()
    (table,) = tmp_path.glob("*.json")
    assert "machine" in json.loads(table.read_text())


@pytest.mark.long
def test_rounds_over_tls_are_timed_against_a_plain_copy():
    shape = Shape("tiny", 2_000, 4, 3)
    found = rounds.measure(shape, passes=1, tls=True)
    down, up = sizes_of(shape)
    assert down == 8_000
    assert 2_000 < up < 2_100
    assert (found["bytes_down"], found["bytes_up"]) == (4 * down, 4 * up)
    assert all(min(contestant["seconds"]) > 0 for contestant in found["contestants"].values())
    assert found["over_raw"]["least"] <= found["over_raw"]["greatest"]
    assert rounds.plot({"tls": True, "rounds": [found]}).axes


@pytest.mark.long
def test_a_server_takes_little_more_than_two_models_whatever_the_number_of_clients(monkeypatch):
    # With the four devices of tests JAX takes five models more.
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES")
    small, large = large_model.measure(10_000_000, 2, 1), large_model.measure(40_000_000, 5, 1)
    assert large["accepted"] == [5]
    models = (large["peak_mib"] - small["peak_mib"]) * 2**20 / (4 * 30_000_000)
    assert 1 < models < 2.7


@pytest.mark.long
def test_check_ins_are_timed():
    found = check_ins.measure_idle(0.5, clients=20, rate=100.0)
    assert 20 <= found["check_ins"] <= 51
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["greatest_ms"]
    assert check_ins.plot({"idle_clients": found["distribution"]}).axes


@pytest.mark.thorough
def test_a_liar_ruins_what_nothing_bounds_and_not_what_is_bounded():
    text = poisoning.read_modules()
    nothing, mean = (
        poisoning.heldout_loss(text, "huge", 10, poisoning.DEFENCES[name], 0, rounds=10)[0]
        for name in ("nothing", "mean")
    )
    assert mean < 4 < nothing
