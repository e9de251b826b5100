"""Simulated hosts: counters, predictions and refusals, and one round over namespaces where this machine allows them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulation import namespaces
from benchmarks.simulation.delaying_switch import HEADER_BYTES, destination
from benchmarks.simulation.hosts import count_bytes, efficiency, parse_point
from benchmarks.simulation.hosts_prediction import (
    PACKET_BYTES,
    Constants,
    Exchange,
    Training,
    exchange_seconds,
    fit_constants,
    seconds_on_the_wire,
    sent_bytes,
    slow_start_trips,
)
from benchmarks.simulation.hosts_prediction import efficiency as efficiency_on_paper
from benchmarks.simulation.namespaces import Counters, Link, Network, owner_of, parse_counters, why_impossible

ROOT = Path(__file__).parents[3]
FAST, FAR = Link("fast", 1000, 0.2), Link("far", 1000, 20)
CONSTANTS = Constants(fixed=0.002, each_peer=0.001, each_byte=3e-9, waits=2.5, of_slow_start=0.5, of_wire=1.25)
DEVICES = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier
    lo:     100       2    0    0    0     0    0    0      100       2    0    0    0     0       0          0
  eth0: 7916128    5461    1    2    0     0    0    0  3958064    2731    0    0    0     0       0          0
"""


def test_counters_are_read_by_interface():
    assert parse_counters(DEVICES) == {"lo": Counters(100, 100), "eth0": Counters(7916128, 3958064)}


def test_a_line_of_another_form_is_no_counter():
    with pytest.raises(ValueError, match="eth0: 1 2"):
        parse_counters(DEVICES.splitlines()[0] + "\n\n eth0: 1 2\n")


def test_bytes_of_a_round_are_those_until_the_next_one_begins():
    def answers(begun, sent):
        return [{"begun": begun, "sent": sent + host, "received": 2 * sent, "within": 0} for host in range(2)]

    given = {("link", "together"): [answers(1.0, 10), answers(3.0, 150)], ("link", "private"): [answers(2.0, 50)]}
    given["", "end"] = [answers(4.0, 151)]
    count_bytes(given)
    sent = [[one["sent_bytes"] for one in each] for each in given["link", "together"] + given["link", "private"]]
    assert sent == [[40, 40], [1, 1], [100, 100]]
    assert given["link", "together"][0][0]["received_bytes"] == 80


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2 / 3), (1.0, 2 / 3), (2.0, 1 / 2)])
def test_efficiency_counts_training_as_if_each_process_had_a_core(share, expected):
    alone = [[{"begun": 0.0, "arrived": 3.0}, {"begun": 0.0, "arrived": 5.0}]]
    together = [[{"begun": 0.0, "arrived": 3.0, "seconds": 6.0}, {"begun": 0.0, "arrived": 4.0, "seconds": 6.0}]]
    assert efficiency(alone, together, share) == pytest.approx(expected, abs=1e-4)


def test_links_and_latency_are_in_the_prediction():
    exchange = Exchange(4, 4_000_000, FAST)
    assert sent_bytes(4, 4_000_000) == 6_000_000
    assert seconds_on_the_wire(exchange) == pytest.approx(6e6 * 8 / 1e9 * 1538 / 1448)
    assert seconds_on_the_wire(exchange._replace(link=Link("unshaped"))) == 0
    # A link's round trip holds less than the vector: the window grows to what it holds for each of three peers.
    packets = 1e9 / 8 * 0.2e-3 / PACKET_BYTES / 3
    assert slow_start_trips(exchange) == pytest.approx(np.log2(1 + packets / 10))
    assert exchange_seconds(exchange, CONSTANTS) == pytest.approx(
        0.002
        + 0.001 * 3
        + 3e-9 * 4e6
        + (2.5 + 0.5 * slow_start_trips(exchange)) * 0.2e-3
        + 1.25 * seconds_on_the_wire(exchange)
    )
    shared = exchange_seconds(exchange._replace(share=2.0), CONSTANTS) - exchange_seconds(exchange, CONSTANTS)
    assert shared == pytest.approx(0.002 + 0.003 + 0.012)
    assert exchange_seconds(exchange._replace(processes=1), CONSTANTS) == 0


def test_constants_are_found_again_in_what_they_predict():
    exchanges = [
        Exchange(processes, size, link)
        for processes in (2, 4, 8)
        for size in (10_000, 4_000_000)
        for link in (Link("unshaped"), FAST, FAR)
    ]
    found = fit_constants(exchanges, [exchange_seconds(exchange, CONSTANTS) for exchange in exchanges])
    assert found == pytest.approx(CONSTANTS, rel=1e-6)


def test_efficiency_on_paper_is_one_alone_and_falls_with_hosts_and_with_ragged_clients():
    even = Training(np.full(50, 4), step_seconds=0.01)
    ragged = even._replace(steps=np.array([1] * 45 + [31] * 5))
    alone = Exchange(1, 4_000_000, FAST)
    assert efficiency_on_paper(alone, ragged, 20, CONSTANTS) == pytest.approx(1)
    of_even = [
        efficiency_on_paper(alone._replace(processes=hosts), even, 10 * hosts, CONSTANTS) for hosts in (1, 2, 10, 100)
    ]
    assert of_even == sorted(of_even, reverse=True)
    training = 40 * 0.01
    exchanged = exchange_seconds(alone._replace(processes=10), CONSTANTS)
    assert of_even[2] == pytest.approx(training / (training + exchanged))
    assert efficiency_on_paper(alone._replace(processes=10), ragged, 20, CONSTANTS) < 0.5


def test_frames_go_to_the_port_of_their_address():
    header = bytes(HEADER_BYTES)
    assert destination(header + b"\x02\0\0\0\0\x02" + bytes(60), 2) == 1
    assert destination(header + b"\x02\0\0\0\0\x03" + bytes(60), 2) is None
    assert destination(header + b"\xff" * 6 + bytes(60), 2) is None
    assert destination(header + b"\x02\0", 2) is None


def test_a_queue_holds_what_is_under_way():
    assert Link("far", 1000, 20).queue_bytes == 2_500_000
    assert Link("near", 100, 1).queue_bytes == 1 << 20
    assert Link("unshaped").queue_bytes == 1 << 20


def test_other_namespaces_are_left_alone():
    assert owner_of("fedlm-hosts-17-0") == 17
    assert owner_of("fedlm-hosts-x-0") is None
    assert owner_of("") is None


@pytest.mark.parametrize("name", ["nothing:2", "cifg_1m", "cifg_1m:two", "cifg_1m:1", "cifg_1m:2:0", "cifg_1m:2:2:2"])
def test_a_point_of_another_form_is_refused_in_one_line(name):
    with pytest.raises(SystemExit) as refused:
        parse_point(name)
    assert re.fullmatch(rf"hosts: --points has '{name}', but must [^\n]+", str(refused.value))


def test_points_are_read():
    assert parse_point("cifg_1m:4") == ("cifg_1m", 4, 1)
    assert parse_point("cifg_9m:2:8") == ("cifg_9m", 2, 8)


def test_who_may_not_make_namespaces_is_told(monkeypatch):
    monkeypatch.setattr(namespaces.sys, "platform", "darwin")
    assert "Linux" in why_impossible()
    monkeypatch.setattr(namespaces.sys, "platform", "linux")
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)
    assert "only root" in why_impossible()
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 0)
    monkeypatch.setattr(namespaces.shutil, "which", lambda name: None)
    assert why_impossible().startswith("there is no ip and no tc; install iproute2")
    monkeypatch.setattr(namespaces.shutil, "which", lambda name: f"/sbin/{name}")
    assert why_impossible() is None


@pytest.mark.long
def test_the_command_refuses_in_one_line(tmp_path):
    environment = {"PATH": str(tmp_path), "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks.simulation.hosts", "--results", str(tmp_path)]
    refused = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert refused.returncode == 1
    assert re.fullmatch(r"hosts: [^\n]+\n", refused.stderr)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.skipif(why_impossible() is not None, reason=str(why_impossible()))
def test_packets_pass_between_namespaces_with_rate_and_delay_and_nothing_is_left():
    def names():
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        return {line.split()[0] for line in listed.splitlines() if owner_of(line.split()[0]) == os.getpid()}

    def ask(network):
        words = [sys.executable, "-m", "benchmarks.simulation.link_check"]
        server = [*network.command(0), *words, "serve", network.address(0)]
        with subprocess.Popen(server, stdout=subprocess.PIPE, cwd=ROOT) as serving:
            serving.stdout.readline()
            client = [*network.command(1), *words, "ask", network.address(0), "1"]
            found = subprocess.run(client, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True).stdout
        numbers = re.findall(r"[\d.]+", found)
        return float(numbers[0]), float(numbers[1])

    try:
        with Network(2, Link("slow", megabits=20, round_trip_ms=30)) as network:
            assert len(names()) == 3
            trip, rate = ask(network)
            assert trip >= 30
            assert rate < 25
            network.change(Link("unshaped"))
            trip, rate = ask(network)
            assert trip < 30
            assert rate > 25
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert names() == set()
    except namespaces.NamespaceError as error:
        pytest.skip(str(error))
    assert not list(Path("/etc/netns").glob(f"fedlm-hosts-{os.getpid()}-*"))
