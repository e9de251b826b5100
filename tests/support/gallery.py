"""A gallery of finished runs, one of each kind, for tests that need a run that has ended.

Each is made at the first request of any worker of a test run, of the smallest model and few rounds; whoever asks gets a
copy, which they may write to.

    simulated   rounds of simulated clients, without privacy
    private     the same with tree noise, clients of a minimum separation and a statement
    central     DP-SGD steps of `fedlm pretrain`
    deployed    rounds of a server with three clients that dial in, with tree noise
    adapters    rounds of adapters upon the simulated run
    comparison  two models of one round each
"""

import asyncio
import functools
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import pytest

from tests.support.made_once import made_once

MODEL = "cifg_tiny"
COHORTS = (
    *("--length", 8, "--cohort-size", 5, "--client-batch-size", 4, "--client-max-batches", 1),
    *("--checkpoint-every", 1, "--evaluate-every", 1, "--heldout-examples", 20, "--test-examples", 20),
)
ROUNDS = ("--rounds", 2, *COHORTS)
NOISE = ("--privacy", "tree", "--noise-multiplier", 1, "--update-clip-norm", 0.1)
COMMANDS = {
    "simulated": ("simulate", "--model", MODEL, *ROUNDS),
    "private": ("simulate", "--model", MODEL, *ROUNDS, *NOISE, "--cohort-sampler", "min_separation"),
    "central": (
        *("pretrain", "--model", MODEL, "--steps", 2, "--length", 8, "--batch-size", 8, "--microbatch-size", 8),
        *("--noise-multiplier", 1, "--checkpoint-every", 1, "--heldout-examples", 20, "--test-examples", 20),
    ),
    "adapters": ("simulate", "--model", MODEL, *ROUNDS, "--lora-rank", 1, "--initial-data", "same"),
    "comparison": (
        *("compare", "--models", "cifg_tiny", "si_cifg_tiny", "--rounds", 1, *COHORTS),
        *("--client-learning-rates", 0.5, "--seeds", 0),
    ),
}
SERVED = {
    **{"model": MODEL, "length": 8, "rounds": 2, "client_max_batches": 1, "checkpoint_every": 1},
    **{"cohort_size": 3, "minimum_reports": 3, "min_separation": 1, "noise_seed": "entropy"},
    # An attempt that a busy machine makes too slow must not end the run: a second one finds every client again.
    **{"selection_seconds": 40.0, "reporting_seconds": 40.0},
}
KINDS = (*COMMANDS, "deployed")


@pytest.fixture(scope="session")
def copied_run(tmp_path_factory, small_store, fedlm_here) -> Callable[[str, Path], Path]:
    """Copy the finished run of a kind to a folder that is not there yet, and return that."""

    def made(kind: str) -> Path:
        make = functools.partial(_serve, small_store) if kind == "deployed" else functools.partial(_type, kind)
        return made_once(tmp_path_factory, f"{kind}_run", make)

    def _type(kind: str, out: Path) -> None:
        first = ("--init-from", made("simulated")) if kind == "adapters" else ()
        with _quickly_made():
            done = fedlm_here(*COMMANDS[kind], "--data", small_store, *first, "--out", out)
        # What so few rounds have trained may be worse than a guess, which counts as diverged.
        assert done.returncode in (0, 3), done.stderr

    return lambda kind, folder: shutil.copytree(made(kind), folder)


@pytest.fixture
def finished_run(copied_run, tmp_path) -> Callable[[str], Path]:
    """Give a copy of its own of the finished run of a kind: one of `KINDS`."""
    return lambda kind: copied_run(kind, tmp_path / kind)


@contextmanager
def _quickly_made() -> Iterator[None]:
    """Compile without costly optimizations, and run the cells of a comparison in this process."""
    from tests.support.cells_here import cells_run_here

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        with cells_run_here():
            yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def _serve(store: Path, out: Path) -> None:
    # The libraries of a server take a while to load.
    from fedlm.clients.device.dialling import dialling
    from fedlm.clients.device.server_instructions import AllowedPrograms
    from fedlm.fedlm_client.client import Client
    from fedlm.fedlm_client.example_store import ExampleStore
    from fedlm.fl_core.deployment.server.task import Task
    from fedlm.models.registry import create_model
    from fedlm.simulations.data.store.token_store import TokenStore
    from tests.deployment import small_deployment as small

    out.with_name("deployed_texts").mkdir(exist_ok=True)
    opened = TokenStore.open(store)
    settings = small.deployment(**small.PRIVACY | SERVED)
    model = create_model(MODEL, opened.vocabulary_size)
    task = Task(settings, model, (store / "tokenizer.json").read_bytes(), opened.fingerprint)
    server = small.Server(task, out)

    def client(number: int) -> Client:
        dial = dialling(f"127.0.0.1:{server.port}", None)
        texts = ExampleStore(out.with_name("deployed_texts") / f"client{number}.jsonl")
        texts.append([f"the server reads {number} files"] * 4)
        return small.client_of(
            lambda: dial(f"client{number}"), texts, lambda _: opened.tokenizer.encode_batch, AllowedPrograms((MODEL,))
        )

    async def rounds() -> None:
        async with asyncio.timeout(110), server, small.running([client(number) for number in range(3)]):
            assert await server.over

    asyncio.run(rounds())
