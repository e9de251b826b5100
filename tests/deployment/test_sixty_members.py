"""A secure round of sixty devices over TLS: clients of plans and others, devices that are killed in each phase, and two
aggregators of which one is killed. The sum is that of the survivors' vectors, added up in the clear."""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from fedlm.clients.device.jax_trainer import JaxTrainer
from fedlm.fedlm_client.client import Client
from fedlm.fedlm_client.link.credentials import client_tls, read_certificates
from fedlm.fedlm_client.link.http_channel import HttpChannel
from fedlm.fedlm_client.secure_aggregation.device import SecureSums
from fedlm.fedlm_client.secure_aggregation.floors import Floors
from fedlm.fedlm_client.secure_aggregation.member import Member
from fedlm.fedlm_client.text.example_store import ExampleStore
from fedlm.fl_core.deployment.aggregators import silence
from fedlm.fl_core.deployment.roles import Endpoints, aggregate, coordinate
from fedlm.fl_core.deployment.security.plan_keys import create_plan_key
from fedlm.fl_core.deployment.server.reports.summed_integers import NoisedSums
from fedlm.fl_core.deployment.state.state_sql import sqlite_url
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from tests.deployment import small_deployment as small
from tests.deployment import test_plan_clients as plans
from tests.deployment.kills import rows_of
from tests.deployment.test_aggregators import kill_one
from tests.deployment.test_secure_sums import NOISED, PROMPT, make_credentials
from tests.support.processes import ENVIRONMENT
from tests.support.told_vectors import tell

COUNT, LEAST = 60, 30
PLANS, COMMANDS = range(6), range(6, 9)
# By what they are asked when they are killed. Those of the first two are in no sum.
KILLED = {"deal": range(9, 11), "mask": range(11, 13), "agree": range(13, 15), "reveal": range(15, 17)}
TOGETHER = (range(17, 39), range(39, COUNT))
EARLY = 4
# Clients of plans and others are in one sum where it has noise.
SETTINGS = NOISED | PROMPT | {"rounds": 1, "cohort_size": COUNT, "minimum_reports": LEAST, "reporting_seconds": 40.0}
SETTINGS |= {"client_batch_size": 8, "selection_seconds": 120.0, "update_norm_bound": "auto"}


def task_of(store, keys):
    task = plans.task_of(Tokenizer.load(store / "tokenizer.json"), keys, **SETTINGS)
    return dataclasses.replace(task, authorities=tuple(read_certificates(keys / "ca.pem")))


def aggregate_until_killed(store, keys, out, url, port):
    small.log_to(out.with_suffix(".log"))
    task = task_of(store, keys)
    asyncio.run(aggregate(task, out, small.endpoints(task.deployment, port, True, linger=5.0, keys=keys), url))


class Late(HttpChannel):
    """Uploads once an aggregator was killed."""

    killed = None

    async def upload(self, header, pieces):
        while not self.killed.exists():
            await asyncio.sleep(0.1)
        return await super().upload(header, pieces)


def take_part(port, folder, numbers, phase=None):
    """Run devices in one process, each over connections of its own.

    The process is killed when one of them is asked something; without such a phase all but the first few are late.
    """
    tell(Member, folder / "told")
    Late.killed = folder / "killed"
    if phase:
        setattr(Member, phase, lambda *asked: os.kill(os.getpid(), signal.SIGKILL))

    def read(content):
        return Tokenizer(json.loads(content)).encode_batch

    def client(place, number):
        mine, channel = credentials_of(folder, number), HttpChannel if phase or place < EARLY else Late
        store = ExampleStore(plans.data_of(folder, number))
        trainer = JaxTrainer(store, read, small.ALLOWED)
        sums, tls = SecureSums.read(mine, Floors(LEAST)), client_tls(mine)
        dial = lambda: channel(f"127.0.0.1:{port}", tls=tls)  # noqa: E731
        return Client(dial, trainer, limits=small.IMPATIENT, sums=sums)

    async def run():
        await asyncio.gather(*(client(*one).run_async() for one in enumerate(numbers)))

    asyncio.run(run())


def credentials_of(folder, number):
    return folder / f"keys/clients/client{number}"


def command(port, folder, number):
    """Run a client's command: that of plans, or the one that has the models."""
    words = ["--server", f"127.0.0.1:{port}", "--credentials", credentials_of(folder, number)]
    words += ["--data", plans.data_of(folder, number), "--secure-sums", "--least-cohort", LEAST]
    if number in PLANS:
        words = ["fedlm_client", "fedlm_client.cli", "run", *words, "--plan-key", folder / "keys/plan.pub"]
    else:
        words = ["fedlm.fedlm_client", "fedlm.commands.cli", "client", *words, "--models", small.MODEL]
    line = [sys.executable, "-m", "tests.support.told_vectors", folder / "told", *words]
    return subprocess.Popen(list(map(str, line)), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def running(processes):
    try:
        yield
    finally:
        for process in processes:
            process.kill()


@pytest.mark.thorough
async def test_sixty_devices_come_to_the_model_of_plain_sums_though_many_die_and_an_aggregator(
    small_store, tmp_path, free_port, monkeypatch
):
    sums, aggregate_sum = [], NoisedSums.aggregate
    seen = lambda this, total, *others: sums.append((total.copy(), this.bits)) or aggregate_sum(this, total, *others)  # noqa: E731
    monkeypatch.setattr(NoisedSums, "aggregate", seen)
    # Nobody is silent for so long, however busy the machine is.
    monkeypatch.setattr(silence, "LEASE_SECONDS", 10.0)
    keys, _ = make_credentials(tmp_path / "keys", COUNT)
    create_plan_key(keys)
    (tmp_path / "told").mkdir()
    task, url, rows = task_of(small_store, keys), sqlite_url(tmp_path / "state.db"), []
    words = [(small_store, keys, tmp_path / f"aggregator{one}", url, free_port) for one in range(2)]
    aggregators = {small.in_process(aggregate_until_killed, *one): one[2].with_suffix(".log") for one in words}
    parts = [(numbers, phase) for phase, numbers in KILLED.items()] + [(numbers, None) for numbers in TOGETHER]
    devices = [small.in_process(take_part, free_port, tmp_path, *part) for part in parts]
    commands = [command(free_port, tmp_path, one) for one in (*PLANS, *COMMANDS)]
    with running([*aggregators, *devices, *commands]):
        async with asyncio.timeout(small.PATIENCE):
            coordinating = asyncio.create_task(
                coordinate(task, tmp_path / "run", Endpoints(), rows.append, database=url)
            )
            while not (tmp_path / "state.db").exists():
                await asyncio.sleep(0.1)
            lost = await kill_one(url, aggregators, Gate(tmp_path / "killed"), which=0)
            assert await coordinating
            ended = [await asyncio.to_thread(one.communicate) for one in commands]
            for process in devices:
                await asyncio.to_thread(process.join)
    assert [process.exitcode for process in devices] == [-signal.SIGKILL] * len(KILLED) + [0] * len(TOGETHER)
    assert [process.returncode for process in commands] == [0] * len(commands), ended
    found = rows_of(url, "select identity from participations join clients on client = clients.number")
    survivors = {identity for (identity,) in found}
    dead = {f"client{one}" for phase in ("deal", "mask") for one in KILLED[phase]}
    alive = {f"client{one}" for phase in ("agree", "reveal") for one in KILLED[phase]}
    assert 0 < lost <= COUNT - len(dead) - len(survivors)
    assert not survivors & dead
    assert len(survivors & alive) >= 1, "who dies after it was named counts"
    assert survivors & {f"client{one}" for one in PLANS}
    assert [row["clients"] for row in rows] == [len(survivors)]
    vectors = [np.load(tmp_path / f"told/{name}.npy") for name in sorted(survivors)]
    ((total, bits),) = sums
    np.testing.assert_array_equal(total, sum(vectors) % (1 << bits))


class Gate:
    """Lets late uploads go."""

    def __init__(self, path):
        self.set = path.touch
