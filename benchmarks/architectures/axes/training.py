"""One training and its scores, and the data that they have."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.architectures.axes.points import (
    BATCH_SIZE,
    DATA,
    EVALUATE_EVERY,
    LENGTH,
    Run,
    Setting,
)
from benchmarks.architectures.axes.records import DIVERGED
from benchmarks.architectures.synthetic_text import Source, known_entropy, write_store
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.errors import DataError
from fedlm.fl_core.scores import evaluate
from fedlm.simulations.data.federated_data import StoredData, device_batches
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.stackexchange.source import StackExchange
from fedlm.simulations.data.sources.standard_library import StandardLibrary
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.experiments.callbacks import Callback
from fedlm.simulations.experiments.cell_execution import Row
from fedlm.simulations.experiments.experiment import FinishedRound
from fedlm.simulations.experiments.federated_models import create_federated_model
from fedlm.simulations.experiments.simulating import simulate

HELDOUT_EXAMPLES = 2000
TEST_EXAMPLES = 4000
DP_FTRL: dict[str, Any] = {
    "privacy": "tree_honaker",
    "server_optimizer": "fedavgm",
    "server_momentum": 0.9,
    "update_clip_norm": 1.0,
    "cohort_sampler": "min_separation",
    "min_separation": 10,
    "max_participations": 6,
}
"""Of private trainings: what the preset `small-private` has, but that a target epsilon decides the noise."""
DONE = "done"
"""In the row that a training reports last."""
_RESULT = "result.json"


def prepare_data(name: str, work: Path, dumps: Path) -> Path:
    """Import a text where that was not done.

    Args:
      name: in `DATA`.
      work: folder of all that is not committed.
      dumps: folder of Stack Exchange dumps.

    Returns:
      The token store's folder.
    """
    source, store = DATA[name], work / "data" / name
    if (store / "store.json").exists():
        return store
    if source.text == "synthetic":
        return write_store(store, Source(), clients=2500, sentences=(20, 200))
    settings = ImportSettings(vocabulary_size=source.vocabulary, min_examples=source.min_examples)
    if source.text == "stdlib":
        import_text("stdlib", StandardLibrary(), store, settings)
    else:
        if not dumps.exists():
            raise DataError(f"{dumps}: there is no such folder; give --dumps, a folder of Stack Exchange dumps")
        import_text("stackexchange", StackExchange((dumps,)), store, settings)
    return store


def describe_data(store: Path) -> dict[str, Any]:
    """Describe a data set, JSON-able: its size, and the entropy of its text where that is known."""
    data = TokenStore.open(store)
    train = data.split("train")
    entropy = known_entropy(store)
    return {
        "clients": train.num_clients,
        "examples": int(train.num_examples.sum()),
        "tokens": int(train.num_tokens.sum()),
        "vocabulary": data.vocabulary_size,
        "contents": data.contents,
        # Machines differ in the last bits of a sum.
        "entropy": None if entropy is None else round(entropy, 12),
    }


def mean_steps(store: Path, setting: Setting) -> float:
    """Give how many local steps a client takes on average."""
    batches = -(-TokenStore.open(store).split("train").num_examples // BATCH_SIZE)
    return float(np.mean(np.minimum(batches * setting.epochs, setting.max_batches)))


def device_clock() -> float:
    """Read the time that trainings cost: CPU seconds, which what else runs here does not lengthen; on an accelerator
    those that pass."""
    return time.process_time() if jax.default_backend() == "cpu" else time.perf_counter()


def device_kind() -> str:
    """Name the kind of this process's devices."""
    return jax.devices()[0].device_kind


def settings_of(run: Run) -> dict[str, Any]:
    """Make the settings of a training but for its data and rounds."""
    setting = run.setting
    private: dict[str, Any] = {}
    if setting.privacy is not None:
        private = DP_FTRL | {"target_epsilon": setting.privacy}
    return private | {
        "model": f"{run.model}_{setting.size}",
        "cohort_size": setting.cohort,
        "client_max_batches": setting.max_batches,
        "client_epochs": setting.epochs,
        "client_gradient_clip": setting.clip,
        "server_epsilon": setting.epsilon,
        "client_learning_rate": run.client_rate,
        "server_learning_rate": run.server_rate,
        "client_batch_size": BATCH_SIZE,
        "length": LENGTH,
        "seed": run.seed,
        # On accelerators too, where less would be the default.
        "precision": "float32",
    }


class TestScores(Callback):
    """Scores a run's model on test clients after some of its rounds, and keeps the scores in a file.

    Attributes:
      scores: by how many rounds were done, loss and accuracy, None where these are not finite.
    """

    __test__ = False

    def __init__(self, path: Path, store: Path, model: str, rounds: frozenset[int]):
        """Read what an earlier part of the run left in the file."""
        data = TokenStore.open(store)
        self._path, self._rounds = path, rounds
        self._model = create_federated_model(model, data.vocabulary_size, data.special_tokens)
        self._batches = list(device_batches(StoredData(data.split("test"), LENGTH), LENGTH, TEST_EXAMPLES))
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.scores: dict[int, list[float | None]] = {int(rounds): scores for rounds, scores in known.items()}

    def on_round(self, finished: FinishedRound) -> None:
        done = finished.row["round"] + 1
        if done not in self._rounds or finished.params is None:
            return
        found = evaluate(self._model, finished.params, self._batches)
        self.scores[done] = [_finite(found.loss), _finite(found.accuracy)]
        write_atomically(self._path, json.dumps(self.scores))


def _finite(number: float) -> float | None:
    return round(float(number), 5) if np.isfinite(number) else None


@dataclass(frozen=True)
class Cell:
    """A training that is to have had so many rounds, a `CellTask`; the row that it reports last says so."""

    trained: Run
    rounds: int
    store: Path
    directory: Path
    tested: frozenset[int]  # rounds after which it is scored on test clients

    def is_finished(self) -> bool:
        path = self.directory / _RESULT
        if not path.exists():
            return False
        found = self.result()
        return found["rounds"] >= self.rounds or found["status"] == DIVERGED

    def result(self) -> dict[str, Any]:
        """Read what was found."""
        return json.loads((self.directory / _RESULT).read_text(encoding="utf-8"))

    def run(self, report: Callable[[Row], None]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        found = train(settings_of(self.trained), self.rounds, self.store, self.directory, self.tested)
        write_atomically(self.directory / _RESULT, json.dumps(found))
        report({DONE: True})


def train(
    settings: dict[str, Any], rounds: int, store: Path, directory: Path, tested: frozenset[int]
) -> dict[str, Any]:
    """Train a model, or what is left of so many rounds.

    Returns:
      A JSON-able record: `status`; `rounds` that it had; `heldout` and `test`, rows [rounds, loss, accuracy], None for
      what is not finite; `steps`, local ones of all clients; `seconds` of `device_clock`, all parts together, on
      `device`; `parameters`; `privacy`, what is stated of it.
    """
    began, spent = device_clock(), directory / "seconds.json"
    before = json.loads(spent.read_text(encoding="utf-8")) if spent.exists() else 0.0
    scores = TestScores(directory / "test.json", store, settings["model"], tested)
    finished = simulate(
        data=store,
        out=directory / "run",
        rounds=rounds,
        evaluate_every=EVALUATE_EVERY,
        checkpoint_every=50,
        heldout_examples=HELDOUT_EXAMPLES,
        test_examples=1,
        callbacks=[scores],
        **settings,
    )
    seconds = before + device_clock() - began
    write_atomically(spent, json.dumps(seconds))
    rows = finished.rows
    return {
        "status": finished.summary["status"],
        "rounds": len(rows),
        "heldout": [
            [row["round"] + 1, *(row[name] and round(row[name], 5) for name in ("heldout_loss", "heldout_accuracy"))]
            for row in rows
            if "heldout_loss" in row
        ],
        "test": [[done, *scores.scores[done]] for done in sorted(scores.scores) if done <= len(rows)],
        "steps": sum(row["steps"] for row in rows),
        "seconds": round(seconds, 1),
        "device": device_kind(),
        "parameters": finished.summary["trained_parameters"],
        "privacy": finished.privacy,
    }
