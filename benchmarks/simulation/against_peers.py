"""One federated round of fedlm, of a bare loop and of other frameworks, timed in turn in one run.

Every contestant is a process that lives as long as its model is measured (see `benchmarks/simulation/peers`). All are
given the same clients, start each round from the same parameters, take the same number of local SGD steps, and average
weighted by examples. Their losses differ only by the order of a client's examples, which each framework draws for
itself: `--check` gives every client a single full batch, and then all must end with the same loss. In each pass every
contestant runs one round, in one order and in the reverse order by turns; ratios are taken pass by pass.

    python -m benchmarks.simulation.against_peers

`make reference` and `make bench-peers` make the environments of the peers; without them they are left out.
Models that are not measured keep the numbers of an earlier run on the same machine. Run it when nothing else runs.
"""

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from benchmarks.machine import describe_machine, measured_before
from benchmarks.simulation.against_peers_report import plot, table
from benchmarks.simulation.comparing import loss_disagreements
from benchmarks.simulation.contestants import Contestant, ContestantError
from benchmarks.simulation.measurement import Measurement
from benchmarks.simulation.peers.jax_models import create
from benchmarks.simulation.peers.task import Settings, Task, save_task
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.models.base import Batch, batch_loss
from fedlm.models.special_tokens import SPECIAL_TOKENS

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
LOGS = ROOT / "runs/benchmark/against_peers"
TABLE_WIDTH = 140
CORES = len(os.sched_getaffinity(0))
ONE_PROCESS_A_CORE = ("-m", "torch.distributed.run", f"--nproc-per-node={CORES}")
LENGTH, VOCABULARY, BATCH, LEARNING_RATE = 20, 4096, 10, 0.1
CHECK_TOLERANCE = 1e-3
OURS = Path(sys.executable)
REFERENCE = ROOT / "reference/.venv/bin/python"
PEERS = Path(__file__).parent / "peers/.venv/bin/python"


class Program(NamedTuple):
    """How a contestant is started.

    Attributes:
      module: of `benchmarks.simulation.peers`.
      python: of its environment.
      make: what makes that environment.
      launcher: words between the interpreter and `-m MODULE`.
      arguments: words after the task.
    """

    module: str
    python: Path
    make: str
    launcher: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


PROGRAMS = {
    "engine": Program("fedlm_engine", OURS, "make"),
    "bare": Program("bare_loop", OURS, "make"),
    "fedjax": Program("fedjax_round", REFERENCE, "make reference", arguments=("pmap",)),
    "tff": Program("tff_round", REFERENCE, "make reference"),
    "pfl": Program("pfl_round", PEERS, "make bench-peers", ONE_PROCESS_A_CORE, ("1",)),
    "flower": Program("flower_round", PEERS, "make bench-peers", arguments=(str(CORES),)),
}
DEFAULT = tuple(PROGRAMS)
# Other configurations of the peers, for finding out with `--contestants` which is the fastest on a machine. Those above
# were chosen after three passes of cifg_1m, 12 clients, on two cores that other work used too: FedJAX's pmap and a
# pfl-research process a core came first, TensorFlow Federated's two were too close to tell, Flower's were not compared.
PROGRAMS |= {
    "fedjax_own_lstm": Program("fedjax_round", REFERENCE, "make reference", arguments=("jit", "own")),
    "fedjax_jit": Program("fedjax_round", REFERENCE, "make reference", arguments=("jit",)),
    "tff_call_a_core": Program("tff_round", REFERENCE, "make reference", arguments=(str(CORES),)),
    "pfl_threads": Program("pfl_round", PEERS, "make bench-peers", arguments=(str(CORES),)),
    "pfl_one_thread": Program("pfl_round", PEERS, "make bench-peers", arguments=("1",)),
    "flower_threads": Program("flower_round", PEERS, "make bench-peers", arguments=("1",)),
}


class Cohort(NamedTuple):
    """On which clients a model is measured, and by whom if not told otherwise.

    Attributes:
      clients: how many.
      programs: by whom.
      median: about how many sentences a client has in the median.
      most: sentences of a client.
    """

    clients: int
    programs: tuple[str, ...]
    median: float = math.exp(3.2)
    most: int = 200


AGAINST_PFL = ("engine", "bare", "pfl")
# Most clients have one batch or two, as in Stack Exchange's small sites and in the standard library.
SMALL_CLIENTS = Cohort(100, AGAINST_PFL, 12.0, 100)
COHORTS = {
    "cifg_100k": SMALL_CLIENTS,
    "transformer_100k": SMALL_CLIENTS,
    "cifg_tiny": SMALL_CLIENTS,
    "transformer_tiny": SMALL_CLIENTS,
    "lstm_1m": Cohort(50, (*DEFAULT, "fedjax_own_lstm")),
    "cifg_1m": Cohort(50, DEFAULT),
    "transformer_1m": Cohort(50, DEFAULT),
    "cifg_9m": Cohort(12, AGAINST_PFL),
    "transformer_11m": Cohort(12, AGAINST_PFL),
}


def main() -> None:
    arguments = parse_arguments()
    jax.config.update("jax_num_cpu_devices", CORES)
    console = Console()
    console.width = max(console.width, TABLE_WIDTH)
    if arguments.check:
        raise SystemExit(not all([check_model(name, arguments, console.log) for name in arguments.models]))
    arguments.results.mkdir(parents=True, exist_ok=True)
    results = {"machine": describe_machine(), "setting": setting(), "models": {}}
    results["models"] = measured_before(arguments.results / "against_peers.json", results, "models", {})
    partial = arguments.results / "against_peers.partial.json"

    def keep(name: str, measured: dict) -> None:
        results["models"][name] = measured
        write_atomically(partial, json.dumps(results, indent=2) + "\n")

    for name in arguments.models:
        measure_model(name, arguments, lambda measured, name=name: keep(name, measured), console.log)
        console.print(table(name, results["models"][name]))
    picture = arguments.results / "against_peers.png"
    plot(results["models"]).savefig(picture.with_suffix(".partial.png"), dpi=120)
    picture.with_suffix(".partial.png").replace(picture)
    partial.replace(arguments.results / "against_peers.json")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contestants", nargs="+", choices=PROGRAMS, help="the default depends on the model")
    parser.add_argument("--models", nargs="+", choices=COHORTS, default=list(COHORTS))
    parser.add_argument("--passes", type=int, default=7, help="how often each contestant is timed")
    parser.add_argument("--clients", type=int, help="in the cohort; the default depends on the model")
    parser.add_argument("--check", action="store_true", help="time nothing; see whether all compute the same")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that an answer may take")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers and the plot go")
    return parser.parse_args()


def setting() -> str:
    return (
        f"clients of lognormal size (2 to 200 sentences, models of at most 0.4 M parameters small ones of 2 to "
        f"{SMALL_CLIENTS.most}), one epoch of SGD on batches of {BATCH} x {LENGTH} tokens, "
        f"client learning rate {LEARNING_RATE}, average weighted by examples, vocabulary {VOCABULARY}"
    )


def make_task(name: str, clients: int | None = None) -> Task:
    """Draw clients whose words are as unequally frequent as those of a language, and the model's first parameters.

    Args:
      name: of the model.
      clients: how many; as many as its cohort has where None.
    """
    rng, cohort = np.random.default_rng(0), COHORTS.get(name, COHORTS["cifg_1m"])
    sizes = rng.lognormal(math.log(cohort.median), 1.1, clients or cohort.clients).astype(int).clip(2, cohort.most)
    words = np.arange(len(SPECIAL_TOKENS), VOCABULARY)
    frequency = 1 / np.arange(1, len(words) + 1)

    def draw(sentences: int) -> np.ndarray:
        return rng.choice(words, (sentences, LENGTH + 1), p=frequency / frequency.sum()).astype(np.int32)

    settings = Settings(name, VOCABULARY, BATCH, LEARNING_RATE, CORES)
    params = jax.tree_util.tree_map(np.asarray, create(name, VOCABULARY).init(jax.random.key(0)))
    return Task(settings, [draw(size) for size in sizes], params, draw(64))


def loss_before(task: Task) -> float:
    batch = Batch(jnp.asarray(task.evaluation), jnp.ones(len(task.evaluation)))
    return float(batch_loss(create(task.settings.model, VOCABULARY), task.params, batch)[0])


def measure_model(
    name: str, arguments: argparse.Namespace, keep: Callable[[dict], None], say: Callable[[str], None]
) -> None:
    """Measure all contestants on a model; `keep` is given what is known after every pass."""
    cohort = COHORTS[name]
    task = make_task(name, arguments.clients)
    LOGS.mkdir(parents=True, exist_ok=True)
    measurement = Measurement(len(task.clients), loss_before(task))
    with tempfile.TemporaryDirectory() as folder, closing(measurement):
        path = Path(folder) / "task.npz"
        save_task(path, task)
        for program in arguments.contestants or cohort.programs:
            say(f"{name}: starting {program}")
            log = LOGS / f"{name}-{program}.log"
            measurement.start(program, lambda program=program, log=log: launch(program, path, log, arguments.timeout))
        measurement.watch_idle()
        for number in range(arguments.passes):
            say(f"{name}: pass {number + 1} of {arguments.passes}")
            measurement.run_pass(backwards=number % 2 == 1)
            keep(measurement.summary())
    keep(measurement.summary())
    for warning in measurement.warnings():
        say(f"[yellow]{name}: {warning}[/]")


def check_model(name: str, arguments: argparse.Namespace, say: Callable[[str], None]) -> bool:
    """See whether all contestants end with the engine's loss where the order of examples cannot matter."""
    cohort = COHORTS[name]
    task = make_task(name, arguments.clients)
    one_batch = [np.resize(client, (BATCH, LENGTH + 1)) for client in task.clients]
    measurement = Measurement(len(one_batch), loss_before(task))
    LOGS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.npz"
        save_task(path, task._replace(clients=one_batch))
        for program in arguments.contestants or cohort.programs:
            log = LOGS / f"{name}-{program}.log"
            with closing(measurement):
                measurement.start(
                    program, lambda program=program, log=log: launch(program, path, log, arguments.timeout)
                )
                measurement.run_pass(backwards=False)
    losses = measurement.losses_after()
    for contestant, loss in losses.items():
        say(f"{name}: {contestant} goes from {measurement.loss_before:.6f} to {loss:.6f}")
    off = loss_disagreements(measurement.loss_before, losses, "engine", CHECK_TOLERANCE)
    for program, problem in [*measurement.problems.items(), *((key, f"{part:.2%} off") for key, part in off.items())]:
        say(f"[yellow]{name}: {program}: {problem}[/]")
    return not off and not measurement.problems


def launch(name: str, task: Path, log: Path, timeout: float) -> Contestant:
    program = PROGRAMS[name]
    if not program.python.exists():
        raise ContestantError(f"its environment is missing; `{program.make}` makes it")
    module = f"benchmarks.simulation.peers.{program.module}"
    command = [str(program.python), *program.launcher, "-m", module, str(task), *program.arguments]
    return Contestant(command, log, timeout, {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"})


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted; what was measured so far is in against_peers.partial.json")
