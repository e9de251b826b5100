"""The measurements of deployments run, at sizes that say nothing."""

import os

import pytest

from benchmarks.deployment.check_ins import measure_idle, plot
from benchmarks.deployment.rounds import measure
from benchmarks.deployment.rounds import plot as plot_rounds
from benchmarks.deployment.shapes import Shape, sizes_of

SHAPE = Shape("tiny", 2_000, 4, 3)


@pytest.mark.long
@pytest.mark.parametrize("tls", [False, True])
def test_rounds_are_timed_against_two_other_servers(tls):
    found = measure(SHAPE, passes=1, tls=tls)
    down, up = sizes_of(SHAPE)
    assert down == 8_000
    assert 2_000 < up < 2_100
    assert (found["bytes_down"], found["bytes_up"]) == (4 * down, 3 * up)
    for contestant in found["contestants"].values():
        assert len(contestant["seconds"]) == 1
        assert min(contestant["seconds"]) > 0
    assert found["over_raw"]["http"]["least"] <= found["over_raw"]["http"]["greatest"]
    assert plot_rounds({"tls": tls, "rounds": [found]}).axes


@pytest.mark.parametrize("transport", ["grpc", pytest.param("http", marks=pytest.mark.long)])
def test_check_ins_are_timed(transport):
    found = measure_idle(transport, 0.5, clients=20, rate=100.0)
    assert 20 <= found["check_ins"] <= 51
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["greatest_ms"]
    assert 0 <= found["server_cores"] <= os.cpu_count()
    assert plot({(transport, "idle_clients"): found["distribution"]}).axes
