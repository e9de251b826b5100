"""A small deployment for tests: its settings, its clients' data, a server on loopback and clients that dial it."""

import asyncio
import contextlib
import dataclasses
import json
import logging
import multiprocessing
import urllib.request

import jax
import jax.numpy as jnp
import numpy as np

from fedlm.clients.device.dialling import dialling
from fedlm.clients.device.jax_trainer import JaxTrainer
from fedlm.clients.device.server_instructions import AllowedPrograms
from fedlm.fedlm_client.client import Client
from fedlm.fedlm_client.limits import Limits
from fedlm.fedlm_client.link.credentials import AUTHORITY_FILE, read_certificates
from fedlm.fedlm_client.text.example_store import ExampleStore
from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.deployment.endpoints import Endpoints
from fedlm.fl_core.deployment.event_log import JsonLines, event
from fedlm.fl_core.deployment.roles import aggregate, coordinate, serve
from fedlm.fl_core.deployment.server.settings import Deployment
from fedlm.fl_core.deployment.server.task import Task
from fedlm.fl_core.deployment.transport.http_server import HttpServer
from fedlm.fl_core.deployment.transport.listeners import ListenOptions
from fedlm.models.base import language_model
from fedlm.models.layers.dropout import with_dropout
from fedlm.models.registry import ModelEntry, create_model

MODEL = "tests.deployment.small_deployment:BIGRAM"
VOCABULARY, LENGTH, CLIENTS = 40, 6, 20
# Seconds that only a defect takes, however busy the machine is; of quick tests pytest ends those that hang before.
PATIENCE = 400
ALLOWED = AllowedPrograms((MODEL,))
IMPATIENT = Limits(first_backoff=0.05, longest_backoff=0.5, recheck_seconds=0.1)

SETTINGS = {
    "model": MODEL,
    "length": LENGTH,
    "rounds": 3,
    "cohort_size": 8,
    "minimum_reports": 8,
    "client_batch_size": 4,
    "client_max_batches": 3,
    "client_learning_rate": 0.3,
    "seed": 5,
    "check_in_seconds": 0.05,
    "selection_seconds": 20.0,
    "reporting_seconds": 20.0,
    "chunk_bytes": 1 << 16,
}
# FedAdam divides by what it has seen, and so enlarges a difference in the last bit where that is little.
LINEAR = {"server_optimizer": "fedavgm", "server_learning_rate": 0.5}
PRIVACY = LINEAR | {
    "privacy": "tree",
    "noise_multiplier": 0.5,
    "update_clip_norm": 0.1,
    "delta": 1e-3,
    "noise_seed": "experiment",
    "min_separation": 2,
}


@dataclasses.dataclass(frozen=True)
class BigramConfig:
    vocabulary_size: int = VOCABULARY
    embedding: int = 32


def bigram(name, config):
    """Predicts a token from the one before: compiled in a moment."""
    shape = (config.vocabulary_size, config.embedding)

    def init(key):
        first, second = jax.random.split(key)
        return {"table": 0.1 * jax.random.normal(first, shape), "head": 0.1 * jax.random.normal(second, shape[::-1])}

    def apply(params, tokens):
        return jnp.take(params["table"], tokens, axis=0) @ params["head"]

    return language_model(name, config.vocabulary_size, init, apply)


BIGRAM = ModelEntry(bigram, BigramConfig())


def deployment(**changes):
    return compose(Deployment, **SETTINGS | changes)


def examples_of(client):
    """int32 [examples, LENGTH + 1], other ones for each client."""
    from fedlm.fl_core.rounds.client_examples import ClientExamples, padded_sequences

    return padded_sequences(ClientExamples.from_sequences(token_lists(client)), LENGTH)


def token_lists(client):
    rng = np.random.default_rng(client)
    return [rng.integers(4, VOCABULARY, rng.integers(1, LENGTH + 2)).tolist() for _ in range(rng.integers(1, 14))]


def read_vocabulary(content):
    """The texts of these tests are numbers, and their tokenizer reads them."""
    assert json.loads(content) == {"kind": "numbers"}
    return lambda texts: [np.array(list(map(int, text.split())), np.int64) for text in texts]


def store_of(folder, client):
    store = ExampleStore(folder / f"client{client}.jsonl")
    store.append([" ".join(map(str, tokens)) for tokens in token_lists(client)])
    return store


def task(settings, sampler=None, keys=None):
    """What is trained; a folder of keys has the authority of members of secure sums."""
    authorities = () if keys is None else tuple(read_certificates(keys / AUTHORITY_FILE))
    model = with_dropout(create_model(settings.model, VOCABULARY), settings.training.dropout)
    return Task(settings, model, b'{"kind": "numbers"}', "numbers", sampler=sampler, authorities=authorities)


def make_client(port, folder, number, credentials=None, **others):
    """A client; its credentials are in a folder, and it has none where that is None."""
    dial_as = dialling(f"127.0.0.1:{port}", credentials)
    dial = lambda: dial_as(f"client{number}")  # noqa: E731
    return client_of(dial, store_of(folder, number), **others)


def client_of(dial, store, read=read_vocabulary, allowed=ALLOWED, limits=IMPATIENT, **others):
    """A client that has the model, and trains on what a store has."""
    return Client(dial, JaxTrainer(store, read, allowed), limits=limits, **others)


@contextlib.asynccontextmanager
async def running(clients):
    """Run clients beside what is inside; one that fails ends that, and fails the test."""
    tasks = [asyncio.create_task(client.run_async()) for client in clients]
    inside = asyncio.current_task()

    def failed():
        return [task for task in tasks if task.done() and not task.cancelled() and task.exception()]

    for task in tasks:
        task.add_done_callback(lambda _: failed() and inside.cancel())
    try:
        yield tasks
    except asyncio.CancelledError:
        for task in failed():
            inside.uncancel()
            task.result()
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Server:
    """A server in this event loop; an async context manager that waits for the port, then stops the server."""

    operators = None

    def __init__(self, what, out, port=0, linger=0.2, keys=None, database=None, **options):
        self.options = {"keys": keys, **options}
        self.what, self.out, self.port, self.linger, self.rows = what, out, port, linger, []
        self.database = database
        self.rounds = None
        self.over = None

    async def __aenter__(self):
        listening = asyncio.Event()

        def listen(handlers):
            inner = handlers
            while not hasattr(inner, "rounds"):
                inner = inner.inner
            self.rounds = inner.rounds
            made = HttpServer(handlers, ListenOptions(f"127.0.0.1:{self.port}", **self.options))
            start = made.start

            async def start_and_tell():
                await start()
                self.port = made.port
                listening.set()

            made.start = start_and_tell
            return made

        endpoints = Endpoints(listen, self.operators, self.linger)
        over = serve(self.what, self.out, endpoints, self.rows.append, database=self.database)
        self.over = asyncio.create_task(over)
        waiting = asyncio.create_task(listening.wait())
        await asyncio.wait({self.over, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self.over.done():
            self.over.result()
        return self

    async def __aexit__(self, *exception):
        if not self.over.done():
            self.rounds.drain()
            await asyncio.wait([self.over], timeout=30)
        if self.over.done() and not self.over.cancelled():
            self.over.result()


def fetch(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def in_process(target, *words):
    """Begin to run a function of a module in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=target, args=words)
    process.start()
    return process


@contextlib.contextmanager
def aggregator_processes(count, settings, folder, url, port, keys=None):
    """Run aggregators in processes of their own, all on one port; yields their logs by process."""
    processes = {}
    try:
        for one in range(count):
            log = folder / f"aggregator{one}.log"
            words = (settings, log.with_suffix(""), url, port, log, keys)
            processes[in_process(aggregate_in_process, *words)] = log
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def log_to(path):
    """Write the log of this process's server to a file."""
    handler, logger = logging.FileHandler(path), logging.getLogger("fedlm")
    handler.setFormatter(JsonLines())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def endpoints(settings, port, share_port=False, operators=None, linger=0.0, keys=None):
    """A port on loopback for clients."""
    options = ListenOptions(f"127.0.0.1:{port}", share_port=share_port, keys=keys)
    return Endpoints(lambda handlers: HttpServer(handlers, options), operators, linger)


def log_release(row):
    event("round_released", round=row["round"])


def serve_in_process(settings, out, port, log):
    """Run a server until its end, in a process of its own."""
    log_to(log)

    asyncio.run(serve(task(settings), out, endpoints(settings, port), log_release))


def coordinate_in_process(settings, out, database, log, keys=None):
    """Run a coordinator until its end, in a process of its own."""
    log_to(log)
    asyncio.run(coordinate(task(settings, keys=keys), out, Endpoints(), log_release, database=database))


def aggregate_in_process(settings, out, database, port, log, keys=None):
    """Run an aggregator until its end, in a process of its own, on a port that others share."""
    log_to(log)
    listening = endpoints(settings, port, share_port=True, keys=keys)
    asyncio.run(aggregate(task(settings, keys=keys), out, listening, database))
