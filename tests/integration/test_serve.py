"""`fedlm serve` and `fedlm client` as real processes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from fedlm.cli import main

SECRET = "xylophone"
SETTINGS = """
model = "cifg_tiny"
address = "127.0.0.1:{port}"
insecure = true
rounds = 3
cohort_size = 1
over_selection = 1.0
check_in_seconds = 0.3
privacy = "tree"
noise_multiplier = 0.1
update_clip_norm = 0.5
delta = 1e-4
evaluate_every = 2
linger_seconds = 5
"""


@pytest.fixture
def start(tmp_path):
    processes = []

    def start(*words):
        log = (tmp_path / f"log{len(processes)}").open("wb")
        command = [sys.executable, "-m", "fedlm.cli", *map(str, words)]
        environment = os.environ | {"JAX_NUM_CPU_DEVICES": "1"}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        processes.append(process)
        process.log = log.name
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def events(process):
    lines = open(process.log, encoding="utf-8").read().splitlines()  # noqa: SIM115
    return [json.loads(line) for line in lines if line.startswith("{")]


def wait_for(process, name):
    end = time.monotonic() + 60
    while not any(event["event"] == name for event in events(process)):
        assert process.poll() is None, open(process.log).read()  # noqa: SIM115
        assert time.monotonic() < end, f"no {name}: {open(process.log).read()}"  # noqa: SIM115
        time.sleep(0.1)
    return next(event for event in events(process) if event["event"] == name)


def test_a_server_drains_and_goes_on_while_its_client_carries_on(tmp_path, small_store, start, free_port):
    config = tmp_path / "serve.toml"
    config.write_text(SETTINGS.format(port=free_port))
    words = ("serve", "--config", config, "--out", tmp_path / "run", "--vocabulary", small_store)
    server = start(*words, "--heldout", small_store)
    data = tmp_path / "mine.jsonl"
    data.write_text("".join(json.dumps({"text": f"the {SECRET} reads a list {n}"}) + "\n" for n in range(25)))
    client = start("client", "--server", f"127.0.0.1:{free_port}", "--data", data, "--name", "a", "--insecure")
    wait_for(server, "round_released")
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 0, open(server.log).read()  # noqa: SIM115
    assert events(server)[-1]["event"] == "drained"
    before = [event["round"] for event in events(server) if event["event"] == "round_released"]
    again = start(*words, "--heldout", small_store)
    for process in (client, again):
        assert process.wait(90) == 0, open(process.log).read()  # noqa: SIM115
    after = [event for event in events(again) if event["event"] == "round_released"]
    assert before + [event["round"] for event in after] == [0, 1, 2]
    assert after[-1]["heldout_perplexity"] > 1
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["privacy_guarantee"]["epsilon"] > 0
    secret = SECRET.encode()
    kept = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any(secret in path.read_bytes() for path in kept)
    assert secret not in open(server.log, "rb").read() + open(again.log, "rb").read()  # noqa: SIM115


@pytest.mark.parametrize("words", [("--address", "127.0.0.1:0"), ("--insecure", "--address", "0.0.0.0:0")])
def test_plain_text_is_for_loopback_and_has_to_be_asked_for(tmp_path, small_store, words, capsys):
    options = ["--model", "cifg_tiny", "--out", str(tmp_path / "run"), "--vocabulary", str(small_store)]
    assert main(["serve", *options, *words]) == 2
    assert "plain text" in capsys.readouterr().err
