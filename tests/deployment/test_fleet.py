"""`fedlm fleet` against a server in another process's place: many clients, over real connections, learn."""

import asyncio
import json

import pytest

from fedlm.commands.cli import main as fedlm
from fedlm.fedlm_client.files import held_alone
from fedlm.fedlm_client.link.credentials import read_certificates
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.server.task import Task
from fedlm.fl_core.deployment.state.state_sql import DATABASE_FILE, sqlite_url
from fedlm.models.registry import create_model
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.store.writer import StoreWriter
from tests.deployment import small_deployment as small
from tests.deployment.kills import rows_of

LONGEST = 300
PERFECT = "--availability 1 --diurnal 0 --link-bytes inf --speeds 1e9 1e9 1e9 --stay-seconds 1 --dropout 0".split()


def run_fleet(tmp_path, store, words, clients=24, keys=None, **changes):
    """Run a deployment on a store's vocabulary with a fleet, in plain text without keys; returns the server's rows."""
    tokenizer = TokenStore.open(store).tokenizer
    settings = small.deployment(
        **{"rounds": 4, "cohort_size": 6, "minimum_reports": 6, "over_selection": 1.0} | changes
    )
    model = create_model(settings.model, tokenizer.vocabulary_size)
    authorities = () if keys is None else tuple(read_certificates(keys / "ca.pem"))
    content = (store / "tokenizer.json").read_bytes()
    task = Task(settings, model, content, tokenizer.fingerprint, authorities=authorities)

    server = small.Server(task, tmp_path / "run", 0, 5.0, keys)

    async def run():
        async with asyncio.timeout(small.PATIENCE), server:
            address = f"--server 127.0.0.1:{server.port} --clients {clients} --json".split()
            address += ["--keys", str(keys)] if keys else ["--insecure"]
            # Where the run does not come to its end, the fleet does.
            address += ["--models", settings.model, "--seconds", str(LONGEST)]
            assert await asyncio.to_thread(fedlm, ["fleet", *address, *words]) == 0
            if "max_participations" not in changes:
                assert await server.over
        return server.rows

    return asyncio.run(run())


@pytest.mark.long
def test_a_fleet_trains_on_a_store_and_each_of_it_has_a_certificate_of_its_own(tmp_path, small_store, capsys):
    keys, dropping = tmp_path / "keys", [*PERFECT[:-1], "0.3", "--away-seconds", "0.2"]
    Authority.create(keys).make_server(["127.0.0.1"])
    # Each round waits for those who dropped out, as long as it may.
    unsure = {"rounds": 3, "minimum_reports": 3, "over_selection": 1.5, "reporting_seconds": 5.0}
    rows = run_fleet(tmp_path, small_store, ["--data", str(small_store), *dropping], clients=16, keys=keys, **unsure)
    assert all(3 <= row["clients"] <= 18 for row in rows)
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    summary = json.loads(capsys.readouterr().out)
    assert summary["over"]
    assert (summary["clients"], summary["rounds"]) == (16, 3)
    assert summary["answers"]["accepted"] >= sum(row["clients"] for row in rows)
    assert summary["selected"] >= summary["answers"]["accepted"]
    assert summary["dropped"] > 0
    assert summary["bytes_up"] >= sum(row["bytes_up"] for row in rows)
    names = {f"fleet{number}" for number in range(16)}
    assert {one.name for one in Authority(keys).issued()} == names
    found = rows_of(sqlite_url(tmp_path / "run" / DATABASE_FILE), "select identity from clients")
    assert {identity for (identity,) in found} <= names


@pytest.mark.long
def test_a_fleet_adds_to_secure_sums_of_which_some_drop_out(tmp_path, small_store, capsys):
    keys, secure = tmp_path / "keys", {"aggregation": "secure", "update_clip_norm": 0.5, "upload_bits": 32}
    Authority.create(keys).make_server(["127.0.0.1"])
    sizes = {"rounds": 2, "cohort_size": 12, "minimum_reports": 6, "over_selection": 1.0, "reporting_seconds": 5.0}
    words = ["--data", str(small_store), *PERFECT[:-1], "0.1", "--away-seconds", "0.2", "--secure-sums"]
    rows = run_fleet(tmp_path, small_store, words, clients=16, keys=keys, **small.LINEAR, **secure, **sizes)
    assert [6 <= row["clients"] <= 12 for row in rows] == [True] * 2
    summary = json.loads(capsys.readouterr().out)
    assert (summary["over"], summary["rounds"]) == (True, 2)
    assert summary["answers"]["accepted"] >= sum(row["clients"] for row in rows)


@pytest.mark.long
def test_a_fleet_on_a_few_peoples_text_goes_home_when_none_of_it_may_take_part_again(tmp_path, small_store, capsys):
    path, records = tmp_path / "people", tmp_path / "records"
    tokenizer = TokenStore.open(small_store).tokenizer
    with StoreWriter(path, "made up", tokenizer) as writer:
        for number in range(3):
            writer.add("train", f"u{number}", tokenizer.encode_batch(["the server reads a file"] * 3))
    words = ["--data", str(path), *PERFECT, "--examples", "8", "--records", str(records)]
    rows = run_fleet(tmp_path, small_store, words, clients=12, max_participations=1, checkpoint_every=1)
    assert [row["clients"] for row in rows] == [6, 6]
    # Three examples a person are not enough: others lend theirs.
    assert all(row["examples"] >= 6 * 4 for row in rows)
    assert {one.name for one in records.iterdir()} == {f"fleet{one}.participation.json" for one in range(12)}
    summary = json.loads(capsys.readouterr().out)
    assert not summary["over"]
    assert summary["seconds"] < LONGEST, "it went home by itself"
    assert summary["answers"]["accepted"] == 12


def test_mistakes(tmp_path, small_store, capsys):
    for words, message in (
        (["--data", str(small_store), "--server", "127.0.0.1:1"], "--keys"),
        (["--data", str(small_store), "--server", "example.org:1", "--insecure"], "loopback"),
        (["--data", str(tmp_path), "--server", "127.0.0.1:1", "--insecure"], "not a token store"),
        (["--data", str(small_store), "--server", "127.0.0.1:1", "--insecure", "--dropout", "2"], "dropout"),
        (["--data", str(small_store), "--server", "127.0.0.1:1", "--insecure", "--secure-sums"], "give --keys"),
    ):
        assert fedlm(["fleet", *words]) == 2
        assert message in capsys.readouterr().err


def test_one_fleet_at_a_time_counts_in_a_folder_of_records(tmp_path, small_store, capsys):
    (tmp_path / "records").mkdir()
    words = f"--server 127.0.0.1:9 --insecure --clients 2 --data {small_store} --records {tmp_path / 'records'}".split()
    with held_alone(tmp_path / "records"):
        assert fedlm(["fleet", *words, "--seconds", "1"]) == 2
    assert "name another folder with --records" in capsys.readouterr().err
