"""`fedlm server`, `fedlm run` and `fedlm client` as real processes: two runs, one after the other."""

import json
import signal
import time

import pytest

from fedlm.commands.cli import main
from tests.support.processes import PATIENCE, held_port

RUN = """
model = "cifg_tiny"
cohort_size = 1
over_selection = 1.0
check_in_seconds = 0.3
client_batch_size = 4
"""
PRIVATE = """
privacy = "tree"
noise_multiplier = 1.0
update_clip_norm = 0.3
delta = 1e-5
"""


def told(capsys, *words):
    assert main(["run", *map(str, words)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def states(capsys, *to):
    return {run["name"]: run["state"] for run in told(capsys, "list", *to, "--json")}


def until(true):
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.fixture
def operators():
    with held_port() as port:
        yield port


@pytest.mark.long
@pytest.mark.parametrize("budget", [(), ("--epsilon", 60, "--delta", 1e-5)])
def test_a_server_that_is_killed_trains_all_of_its_runs_once_while_its_client_stays(
    tmp_path, small_store, start, free_port, operators, capsys, budget
):
    config, data = tmp_path / "run.toml", tmp_path / "mine.jsonl"
    config.write_text(f'{RUN}{PRIVATE if budget else ""}vocabulary = "{small_store}"\n')
    data.write_text('{"text": "the cat sat on the mat"}\n' * 8)
    server = "server", tmp_path / "server", "--insecure", "--address", f"127.0.0.1:{free_port}"
    server = *server, "--operator-address", f"127.0.0.1:{operators}", *budget
    first, to = start(*server), ("--server", f"127.0.0.1:{operators}")
    until(lambda: main(["run", "list", *to]) == 0)
    capsys.readouterr()
    for name, rounds in (("one", 6), ("two", 2), ("three", 2)):
        for _ in range(2):
            told(capsys, "submit", name, "--config", config, "--rounds", rounds, *to, "--json")
    told(capsys, "stop", "three", *to, "--json")
    client = start("client", "--server", f"127.0.0.1:{free_port}", "--insecure", "--name", "ann", "--data", data)
    until(lambda: told(capsys, "show", "one", *to, "--json")[0]["released"] >= 2)
    first.send_signal(signal.SIGKILL)
    first.wait()
    again = start(*server)
    until(lambda: main(["run", "list", *to]) == 0)
    capsys.readouterr()
    until(lambda: states(capsys, *to) == {"one": "finished", "two": "finished", "three": "stopped"})
    assert client.poll() is None
    for name, rounds in (("one", 6), ("two", 2)):
        released = [
            line["round"] for line in told(capsys, "logs", name, "--follow", *to) if line["event"] == "round_released"
        ]
        rows = (tmp_path / "server" / "runs" / name / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(row)["round"] for row in rows] == list(range(rounds)) == sorted(set(released))
    assert not (tmp_path / "server" / "runs" / "three").exists()
    again.send_signal(signal.SIGTERM)
    assert again.wait(PATIENCE) == 0
