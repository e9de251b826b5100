"""The measurements of deployments run, at sizes that say nothing."""

import json
import os
from pathlib import Path

import pytest

from benchmarks.deployment.check_ins import measure_idle, plot
from benchmarks.deployment.rounds import measure
from benchmarks.deployment.rounds import plot as plot_rounds
from benchmarks.deployment.shapes import Shape, sizes_of
from benchmarks.deployment.waiting import round_of

ROOT = Path(__file__).parents[3]
SHAPE = Shape("tiny", 2_000, 4, 3)


@pytest.mark.long
@pytest.mark.parametrize("tls", [False, True])
def test_rounds_are_timed_against_two_other_servers(tls):
    found = measure(SHAPE, passes=1, tls=tls)
    down, up = sizes_of(SHAPE)
    assert down == 8_000
    assert 2_000 < up < 2_100
    assert (found["bytes_down"], found["bytes_up"]) == (4 * down, 4 * up)
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


def test_the_page_says_where_a_transport_is_the_faster_one():
    """The least and the greatest ratio of the three large models, in plain text and with TLS."""

    def ratios(name, over, under, what):
        rounds = json.loads((ROOT / f"benchmarks/deployment/results/{name}.json").read_text())["rounds"][1:]
        found = [one["contestants"][over][what] / one["contestants"][under][what] for one in rounds]
        return f"{min(found):.1f} to {max(found):.1f} times"

    page = " ".join((ROOT / "docs/deployment.md").read_text().split())
    plain, tls = (
        ratios("rounds", "grpc", "http", "median_seconds"),
        ratios("rounds_tls", "http", "grpc", "median_seconds"),
    )
    memory = ratios("rounds_tls", "http", "grpc", "peak_memory_mib")
    assert f"In plain text on loopback a round over gRPC takes {plain} as long as over HTTP" in page
    assert f"a round over HTTP takes {tls} as long as over gRPC, and takes {memory} the memory" in page


def test_waiting_for_all_gives_everybody_their_share_and_ending_at_the_goal_does_not():
    found = round_of(over_selection=1.3, drops=0.0, deadline=1e4, rounds=200)
    assert found["all"]["reports"] == 130
    assert found["goal"]["reports"] == 100
    # A fifth of 26,000 draws, five standard deviations wide, and 1.3 times as much.
    assert abs(found["all"]["quick"] - 0.2) < 0.0125
    assert abs(found["goal"]["quick"] - 0.26) < 0.016
    assert found["all"]["seconds"] > 2 * found["goal"]["seconds"]
    silent = round_of(over_selection=1.3, drops=0.5, deadline=500.0, rounds=200)
    assert silent["all"]["seconds"] == 500.0
