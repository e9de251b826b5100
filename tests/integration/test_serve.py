"""`fedlm serve` and `fedlm client` as real processes."""

import json
import shutil
import signal

import pytest

from fedlm.commands.cli import main
from fedlm.simulations.data.vocabulary.adopted_tokenizers import adopt_tokenizer
from tests.simulations.weights.published_models import gemma_tokenizer
from tests.support.processes import PATIENCE, events, wait_for

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


@pytest.mark.long
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
    assert server.wait(PATIENCE) == 0, open(server.log).read()  # noqa: SIM115
    assert events(server)[-1]["event"] == "drained"
    before = [event["round"] for event in events(server) if event["event"] == "round_released"]
    again = start(*words, "--heldout", small_store)
    for process in (client, again):
        assert process.wait(PATIENCE) == 0, open(process.log).read()  # noqa: SIM115
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


def test_a_vocabulary_whose_special_tokens_devices_do_not_know_is_refused(tmp_path, capsys):
    gemma_tokenizer(tmp_path)
    adopt_tokenizer(tmp_path / "tokenizer.json", 15, masked=False).tokenizer.save(tmp_path / "adopted.json")
    options = ["--model", "cifg_tiny", "--out", str(tmp_path / "run"), "--vocabulary", str(tmp_path / "adopted.json")]
    assert main(["serve", *options, "--rounds", "1", "--insecure"]) == 2
    assert "has the special tokens <pad>, <eos>, <bos>, <unk>, but devices know only" in capsys.readouterr().err


@pytest.mark.long
def test_a_device_enrols_takes_part_and_is_revoked(tmp_path, small_store, start, capsys):
    keys, mine = tmp_path / "keys", tmp_path / "mine"
    folder = ("--keys", str(keys))
    for words in (("ca",), ("server",), ("token", "alice")):
        assert main(["keys", *words, *folder]) == 0
    written = tmp_path / "token"
    written.write_text(capsys.readouterr().out.splitlines()[-1])
    config = tmp_path / "serve.toml"
    config.write_text(SETTINGS.format(port=0).replace("insecure = true", "").replace("rounds = 3", "rounds = 500"))
    served = tmp_path / "server"
    shutil.copytree(keys, served, ignore=shutil.ignore_patterns("ca.key", "tokens", "issued", "revoked"))
    (served / "revoked").symlink_to(keys / "revoked")
    words = ("--out", tmp_path / "run", "--vocabulary", small_store, "--keys", served)
    server = start("serve", "--config", config, *words)
    enrolling = start("keys", "serve", "--keys", keys, "--address", "127.0.0.1:0")
    enrolment = wait_for(enrolling, "listening")["port"]
    believed = ("--ca", str(keys / "ca.pem"))
    enrol = ["keys", "enrol", "--server", f"127.0.0.1:{enrolment}", *believed, "--token", str(written)]
    assert main([*enrol, "--out", str(mine)]) == 0
    assert main([*enrol, "--out", str(tmp_path / "thief")]) == 2
    assert "the token of alice was used by another device" in capsys.readouterr().err
    assert not (tmp_path / "thief" / "client.pem").exists()
    data = tmp_path / "mine.jsonl"
    data.write_text("".join(json.dumps({"text": f"the server reads a list {n}"}) + "\n" for n in range(5)))
    port = wait_for(server, "listening")["port"]
    client = start("client", "--server", f"127.0.0.1:{port}", "--data", data, "--credentials", mine)
    wait_for(server, "round_released")
    assert main(["keys", "revoke", "alice", *folder]) == 0
    assert client.wait(PATIENCE) == 2
    assert "turns this client away: 401 Unauthorized: the certificate of alice was revoked" in open(client.log).read()  # noqa: SIM115
    enrolling.send_signal(signal.SIGTERM)
    assert enrolling.wait(PATIENCE) == 0
    assert wait_for(server, "call_refused")["why"] == "the certificate of alice was revoked"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--insecure", "--server", "fl.example.org:1", "--name", "a"), "plain text is for loopback alone"),
        (("--server", "127.0.0.1:1"), "there are no credentials"),
        (("--insecure", "--server", "127.0.0.1:1"), "insecure needs a name"),
        (("--server", "127.0.0.1:1", "--credentials", "nowhere"), "nowhere/ca.pem: no certificate"),
    ],
)
def test_a_client_without_credentials_talks_to_loopback_alone(tmp_path, words, why, capsys):
    assert main(["client", "--data", str(tmp_path / "mine.jsonl"), *words]) == 2
    assert why in capsys.readouterr().err
