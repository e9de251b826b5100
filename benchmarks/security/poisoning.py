"""What clients that lie do to a run's held-out loss, with what bounds them and without.

Two hundred modules of Python's standard library are clients, and a small model predicts their next character. Of them
so many lie in every round: each kind of lie is an update that an honest client would not send, and every liar claims
ten million examples. Training, aggregation, bound and going back are the code of simulations and deployments.

    python -m benchmarks.security.poisoning
"""

import argparse
import functools
import json
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.machine import describe_machine
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.deployment.server.reports.robust_sums import RobustRule, robust_mean
from fedlm.fl_core.rounds.aggregation import AggregationRules, CohortAggregate, WeightedMean, contribution
from fedlm.fl_core.rounds.cohorts import UniformSampler
from fedlm.fl_core.rounds.local_sgd import TrainingSums, local_step
from fedlm.fl_core.rounds.norm_bounds import BoundedMean
from fedlm.fl_core.rounds.round_loop import CohortResult, FederatedOptimization, RoundPlan
from fedlm.fl_core.rounds.scores import evaluate
from fedlm.fl_core.rounds.server_optimizers import ServerOptimizerConfig
from fedlm.fl_core.runs.driver import Run
from fedlm.fl_core.runs.federated_training import FederatedTraining
from fedlm.fl_core.runs.identity import RunIdentity
from fedlm.fl_core.runs.round_rows import find_divergence
from fedlm.fl_core.runs.run_folder import RunFolder
from fedlm.models.base import Batch, Model, language_model

RESULTS = Path(__file__).parent / "results" / "poisoning.json"
CLIENTS, HELDOUT, COHORT, ROUNDS = 200, 30, 40, 60
LENGTH, BATCH, STEPS, CONTEXT, EMBEDDING, HIDDEN = 20, 10, 6, 4, 16, 64
FIRST_CHARACTER, VOCABULARY = 4, 4 + 96
CLIENT_RATE, SERVER_RATE = 0.5, 0.01
LIES = ("huge", "flipped", "noise")
SHARES = {"one of 200": 1, "1 %": 2, "5 %": 10, "20 %": 40}


class Defence(NamedTuple):
    """What bounds clients."""

    rule: RobustRule = RobustRule()
    bounds: bool = True  # norms, weights, and steps


DEFENCES = {
    "nothing": Defence(bounds=False),
    "mean": Defence(),
    "trimmed mean": Defence(RobustRule("trimmed_mean", 0.25)),
    "median": Defence(RobustRule("median")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers go")
    arguments = parser.parse_args()
    text = read_modules()
    cells = [("none", "none", seed) for seed in range(3)]
    cells += [(lie, share, 0) for lie in LIES for share in SHARES]
    rows = []
    for lie, share, seed in cells:
        for name, defence in DEFENCES.items():
            loss, went_back = heldout_loss(text, lie, SHARES.get(share, 0), defence, seed, arguments.rounds)
            rows.append(
                {"lie": lie, "liars": share, "seed": seed, "defence": name, "loss": loss, "went_back": went_back}
            )
            print(rows[-1], flush=True)
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    record = {"machine": describe_machine(), "setting": {"rounds": arguments.rounds}, "rows": rows}
    write_atomically(arguments.results, json.dumps(record, indent=1) + "\n")
    print(table(rows))


def read_modules() -> list[np.ndarray]:
    """Read the longest modules, int32 [windows, LENGTH + 1] of characters each, in an order that is always the same."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    texts = [path.read_bytes() for path in sorted(folder.glob("*.py")) + sorted(folder.glob("[a-z]*/*.py"))]
    longest = sorted(texts, key=len)[-CLIENTS - HELDOUT :]
    found = []
    for text in longest:
        codes = np.frombuffer(text, np.uint8)
        codes = np.clip(codes[(codes >= 31) & (codes < 127)] - 31, 0, 95).astype(np.int32) + FIRST_CHARACTER
        codes = codes[: 4000 * (LENGTH + 1)]
        found.append(codes[: len(codes) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1))
    order = np.random.default_rng(0).permutation(len(found))
    return [found[one] for one in order]


def heldout_loss(
    text: list[np.ndarray], lie: str, liars: int, defence: Defence, seed: int, rounds: int
) -> tuple[float | None, int]:
    """Run so many rounds; returns the held-out loss of the last model, None where it is no number, and how often the
    run went back."""
    model, heldout = characters(), np.concatenate([one[:40] for one in text[CLIENTS:]])
    batches = [Batch(jnp.asarray(heldout), jnp.ones(len(heldout)))]
    optimization = FederatedOptimization(ServerOptimizerConfig("fedadam"), SERVER_RATE, CLIENT_RATE, seed)
    runner = Cohorts(model, text[:CLIENTS], lie, liars, defence)

    def score(params: Any) -> dict[str, Any]:
        return {"heldout_loss": evaluate(model, params, batches).loss}

    with tempfile.TemporaryDirectory() as out, RunFolder(Path(out)) as folder:
        run = Run(
            folder, RunIdentity("poisoning", {}, {}), steps=rounds, save_every=10, find_divergence=find_divergence
        )
        fresh = optimization.first_state(model.init(jax.random.key(seed)))
        averaging = BoundedMean() if defence.bounds else WeightedMean()
        training = FederatedTraining(run, optimization, fresh, averaging=averaging, goes_back=defence.bounds)
        run.take(training.rounds(runner, UniformSampler(CLIENTS, COHORT, seed), score, 10))
        loss = score(training.server.params)["heldout_loss"]
        return (loss if np.isfinite(loss) else None), sum("went_back" in row for row in folder.rows)


@functools.cache
def characters() -> Model:
    """Make a model of the next character by the few before it."""
    shapes = {"table": (VOCABULARY, EMBEDDING), "hidden": (CONTEXT * EMBEDDING, HIDDEN), "head": (HIDDEN, VOCABULARY)}

    def init(key: jax.Array) -> dict[str, jax.Array]:
        keys = dict(zip(shapes, jax.random.split(key, len(shapes)), strict=True))
        return {name: jax.random.normal(keys[name], shape) / shape[0] ** 0.5 for name, shape in shapes.items()}

    def apply(params: dict[str, jax.Array], tokens: jax.Array) -> jax.Array:
        padded = jnp.pad(tokens, ((0, 0), (CONTEXT - 1, 0)))
        seen = [params["table"][padded[:, one : one + tokens.shape[1]]] for one in range(CONTEXT)]
        return jax.nn.relu(jnp.concatenate(seen, -1) @ params["hidden"]) @ params["head"]

    return language_model("characters", VOCABULARY, init, apply)


class Cohorts:
    """A `CohortRunner` of which the first clients lie; trains a whole cohort at once."""

    def __init__(self, model: Model, text: list[np.ndarray], lie: str, liars: int, defence: Defence):
        self._model, self._text, self._lie, self._liars, self._rule = model, text, lie, liars, defence.rule
        weighting = "examples" if defence.rule.name == "mean" else "uniform"
        self._rules = AggregationRules(weighting, STEPS * BATCH if defence.bounds else np.inf)

    def announce(self, plan: RoundPlan) -> None:
        pass

    def run(self, params: Any, plan: RoundPlan, clip_norm: float | None = None, memory: Any = ()) -> CohortResult:
        rng = np.random.default_rng([plan.seed, plan.round_number])
        lying = plan.clients < self._liars
        tokens = np.stack([self._examples(client, rng) for client in plan.clients])
        deltas, sums = train_cohort(self._model, params, jnp.asarray(tokens), plan.learning_rate)
        deltas = jax.tree_util.tree_map(lambda leaf: self._told(np.array(leaf), lying, rng), deltas)
        own = np.array([min(len(self._text[client]), STEPS * BATCH) for client in plan.clients])
        examples = np.where(lying, 10_000_000, own).astype(np.float32)
        each = contribute(self._rules, deltas, jnp.asarray(examples), sums, clip_norm)
        return CohortResult(self._combine(each), COHORT * STEPS, 0, 0)

    def _examples(self, client: int, rng: np.random.Generator) -> np.ndarray:
        rows = rng.integers(0, len(self._text[client]), STEPS * BATCH)
        return self._text[client][rows].reshape(STEPS, BATCH, -1)

    def _told(self, updates: np.ndarray, lying: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Put lies in the place of updates, float32 [clients, ...]."""
        if self._lie == "huge":
            updates[lying] = 1e15
        elif self._lie == "flipped":
            updates[lying] *= -10
        elif self._lie == "noise":
            updates[lying] = 3 * np.std(updates[~lying]) * rng.normal(size=updates[lying].shape)
        return updates

    def _combine(self, each: CohortAggregate) -> CohortAggregate:
        total = jax.tree_util.tree_map(lambda leaf: jnp.sum(leaf, 0), each)
        if self._rule.name == "mean":
            return total
        finite = np.asarray(each.dropped) == 0

        def robust(leaf: jax.Array) -> jax.Array:
            rows = np.asarray(leaf)[finite]
            return jnp.asarray(robust_mean(rows.reshape(len(rows), -1), self._rule).reshape(leaf.shape[1:]) * len(rows))

        return total._replace(delta=jax.tree_util.tree_map(robust, each.delta))


@functools.partial(jax.jit, static_argnums=0)
def train_cohort(model: Model, params: Any, tokens: jax.Array, rate: float) -> tuple[Any, TrainingSums]:
    """Train int32 [clients, steps, batch, length + 1], each client from the same parameters; returns all updates."""

    def client(own: jax.Array) -> tuple[Any, TrainingSums]:
        def step(local: Any, rows: jax.Array) -> tuple[Any, TrainingSums]:
            return local_step(model, local, Batch(rows, jnp.ones(len(rows))), learning_rate=rate, gradient_clip=None)

        local, sums = jax.lax.scan(step, params, own)
        delta = jax.tree_util.tree_map(jnp.subtract, params, local)
        return delta, jax.tree_util.tree_map(jnp.sum, sums)

    return jax.vmap(client)(tokens)


@functools.partial(jax.jit, static_argnums=0)
def contribute(
    rules: AggregationRules, deltas: Any, examples: jax.Array, sums: TrainingSums, clip_norm: jax.Array | None
) -> CohortAggregate:
    """Make what each client adds, with a leading axis of clients."""
    return jax.vmap(lambda *one: contribution(*one, rules, clip_norm=clip_norm))(deltas, examples, sums)


def table(rows: list[dict[str, Any]]) -> str:
    """Write the losses as a table in Markdown; of runs without lies the mean over seeds."""
    cells: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        loss = np.inf if row["loss"] is None else row["loss"]
        cells.setdefault((row["lie"], row["liars"]), {}).setdefault(row["defence"], []).append(loss)
    lines = ["| lie | liars | " + " | ".join(DEFENCES) + " |", "| --- " * (len(DEFENCES) + 2) + "|"]
    for (lie, share), found in cells.items():
        means = [float(np.mean(found[name])) for name in DEFENCES]
        shown = [f"{one:.2f}" if one < 100 else "ruined" for one in means]
        lines.append(f"| {lie} | {share} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
