"""Clients that have nothing of our code but plans take part beside those that have the models."""

import asyncio
import dataclasses
import json

import jax
import numpy as np
import pytest

from fedlm.clients.device.dialling import dialling
from fedlm.clients.device.server_instructions import encode
from fedlm.fedlm_client.client import Client
from fedlm.fedlm_client.errors import ClientError
from fedlm.fedlm_client.limits import Limits
from fedlm.fedlm_client.link.credentials import client_tls, read_certificates
from fedlm.fedlm_client.link.http_channel import HttpChannel
from fedlm.fedlm_client.own_participation import OwnParticipation
from fedlm.fedlm_client.plans.plan_trainer import PlanTrainer
from fedlm.fedlm_client.plans.signature import read_public_keys
from fedlm.fedlm_client.secure_aggregation.device import SecureSums
from fedlm.fedlm_client.secure_aggregation.floors import Floors
from fedlm.fedlm_client.text.example_store import ExampleStore
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.security.plan_keys import PLAN_KEY_FILE, PlanSigner, create_plan_key
from fedlm.fl_core.deployment.server.task import Task
from fedlm.fl_core.rounds.cohorts import UniformSampler
from fedlm.models.registry import create_model
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from tests.deployment import small_deployment as small
from tests.deployment.plain_loop import final_parameters, simulate

QUICK = Limits(first_backoff=0.05, longest_backoff=0.5)
# All examples of a client are one batch, so that how a client shuffles changes nothing but rounding.
SETTINGS = {
    **small.LINEAR,
    "upload_bits": 32,
    "rounds": 2,
    "client_batch_size": 6,
    "min_separation": 1,
    "reporting_seconds": 500.0,
    "selection_seconds": 500.0,
    "drain_seconds": 0.5,
    "update_norm_bound": "none",
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    create_plan_key(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(small_store):
    return Tokenizer.load(small_store / "tokenizer.json")


def task_of(tokenizer, keys, **changes):
    settings = small.deployment(**SETTINGS | changes)
    model = create_model(settings.model, tokenizer.vocabulary_size)
    signer = None if keys is None else PlanSigner(keys / PLAN_KEY_FILE)
    content = tokenizer.to_json().encode()
    return Task(settings, model, content, tokenizer.fingerprint, plan_signer=signer)


def texts_of(number):
    rng = np.random.default_rng(number)
    words = ["the", "cat", "sat", "on", "a", "mat", "Where,", "is", "it?"]
    return [" ".join(rng.choice(words, rng.integers(2, 6))) for _ in range(3 + number)]


def data_of(folder, number):
    path = folder / f"client{number}.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts_of(number)))
    return path


def native_client(port, folder, number):
    dial = dialling(f"127.0.0.1:{port}", None)

    def read(content):
        return Tokenizer(json.loads(content)).encode_batch

    return small.client_of(lambda: dial(f"client{number}"), ExampleStore(data_of(folder, number)), read)


def plan_client(port, folder, number, keys, sums=None, tls=None):
    path, said = data_of(folder, number), []
    trainer = PlanTrainer(ExampleStore(path), read_public_keys(keys / "plan.pub"), notice=said.append)
    made = Client(
        lambda: HttpChannel(f"127.0.0.1:{port}", f"client{number}", tls),
        trainer,
        limits=QUICK,
        notice=said.append,
        participation=OwnParticipation(path.with_suffix(".participation")),
        sums=sums,
    )
    return made, said


def check_final(task, out, simulation, clients):
    """The run's parameters are those of rounds in which every client has the model."""
    settings, tokenizer = task.deployment, Tokenizer(json.loads(task.vocabulary))

    def examples(number):
        return encode(texts_of(number), tokenizer.encode_batch, settings.training.length)

    sampler = UniformSampler(clients, clients, settings.seed)
    params, _ = simulate(settings, sampler, simulation, task.model, examples)
    found = jax.tree_util.tree_leaves(final_parameters(out, settings.privacy.is_private))
    for a, b in zip(found, jax.tree_util.tree_leaves(params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


async def take_part(task, out, native, made, processes=lambda port: [], notices=None, **listening):
    """Run a server with its clients to the end of its rounds; what processes say is added to `notices`."""
    server = small.Server(task, out, **listening)
    async with server:
        started = processes(server.port)
        clients = made(server.port)
        threads = [asyncio.create_task(asyncio.to_thread(client.run)) for client in clients]
        try:
            async with small.running(native(server.port)):
                over = await asyncio.gather(*threads)
                assert await server.over
            assert all(over)
            for process in started:
                _, said = await asyncio.to_thread(process.communicate, timeout=60)
                assert process.returncode == 0, said
                if notices is not None:
                    notices.append(said)
        finally:
            for client in clients:
                client.stop()
            for process in started:
                process.kill()
    return server.rows


@pytest.mark.long
def test_a_plan_client_takes_part_beside_one_that_has_the_model(tmp_path, keys, tokenizer):
    task = task_of(tokenizer, keys, cohort_size=2, minimum_reports=2, over_selection=1.0)
    notices = []

    def made(port):
        client, said = plan_client(port, tmp_path, 1, keys)
        notices.append(said)
        return [client]

    native = lambda port: [native_client(port, tmp_path, 0)]  # noqa: E731
    rows = asyncio.run(take_part(task, tmp_path / "run", native, made))
    assert [row["clients"] for row in rows] == [2, 2]
    assert [line for line in notices[0] if "ACCEPTED" in line] == ["round 0: ACCEPTED", "round 1: ACCEPTED"]
    # It was loaded once for both rounds.
    assert sum(line.startswith("plan ") for line in notices[0]) == 1
    check_final(task, tmp_path / "run", tmp_path / "simulation", 2)


@pytest.mark.long
@pytest.mark.parametrize("noise", [{"privacy": "skellam", "noise_multiplier": 0.5, "delta": 1e-3}, {}])
def test_plan_clients_are_in_secure_sums_and_also_one_without_text(tmp_path, keys, tokenizer, noise):
    made_of = Authority.create(tmp_path / "keys")
    made_of.make_server(["127.0.0.1"])
    sizes = {"update_clip_norm": 0.5, "cohort_size": 3, "minimum_reports": 3, "over_selection": 1.0}
    sizes |= {"aggregation": "secure", "update_norm_bound": "auto"} | ({"max_participations": 2} if noise else {})
    task = task_of(tokenizer, keys, **noise, **sizes)
    task = dataclasses.replace(task, authorities=tuple(read_certificates(tmp_path / "keys/ca.pem")))

    def made(port):
        for number in range(3):
            mine = made_of.make_client(f"client{number}")
            sums = SecureSums.read(mine, Floors(3, noise_multiplier=0.3 if noise else 0.0))
            yield plan_client(port, tmp_path, number, keys, sums, client_tls(mine))[0]
        (tmp_path / "client2.jsonl").write_text("")

    native = lambda port: []  # noqa: E731
    serving = {"keys": tmp_path / "keys", "linger": 5.0}
    rows = asyncio.run(take_part(task, tmp_path / "run", native, lambda port: [*made(port)], **serving))
    assert [row["clients"] for row in rows] == [3, 3]


def refused(task, out, make):
    """Run a client that a server must turn away, or that must turn away from it; gives what it says."""

    async def run():
        server = small.Server(task, out)
        async with asyncio.timeout(small.PATIENCE), server:
            client, said = make(server.port)
            try:
                await asyncio.to_thread(client.run)
            except ClientError as error:
                said.append(str(error))
            finally:
                client.stop()
            return said

    return asyncio.run(run())[-1]


@pytest.mark.long
def test_a_client_ends_where_a_server_cannot_show_it_a_plan_that_it_runs(tmp_path, keys, tokenizer):
    one = {"cohort_size": 1, "minimum_reports": 1, "over_selection": 1.0}
    create_plan_key(tmp_path / "others")
    for signer, trusted, said in (
        (None, keys, "so it makes none"),
        (keys, tmp_path / "others", "not by a key that this client trusts"),
    ):
        task, out = task_of(tokenizer, signer, **one), tmp_path / said
        assert said in refused(task, out, lambda port, trusted=trusted: plan_client(port, tmp_path, 1, trusted))
