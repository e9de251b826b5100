"""Our side of a comparison: rounds of the cohort engine, as `fedlm simulate` runs them."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.interop.task import Setting, Task, make_clients
from fedlm.fl_core.rounds.aggregation import AggregationRules, WeightedMean
from fedlm.fl_core.rounds.local_sgd import LocalTraining
from fedlm.fl_core.rounds.round_loop import Averaging, FederatedOptimization, Rounds
from fedlm.fl_core.rounds.server_optimizers import ServerOptimizerConfig
from fedlm.fl_core.updates.registry import make_compressor
from fedlm.interop.parameters import Tree
from fedlm.models.registry import create_model
from fedlm.simulations.data.federated_data import InMemoryData
from fedlm.simulations.engine.cohort_engine import ClientWork, CohortEngine


class EveryClient:
    """A sampler that takes all clients, in order."""

    def __init__(self, clients: int) -> None:
        self._clients = np.arange(clients)

    def sample(self, round_number: int) -> np.ndarray:
        return self._clients


def make_task(setting: Setting) -> Task:
    """Draw a setting's clients and first parameters."""
    params = create_model(setting.model, setting.vocabulary_size).init(jax.random.key(0))
    return Task(setting, make_clients(setting), params)


def run_ours(task: Task, server: str = "fedadam", averaging: Averaging | None = None) -> Iterator[Tree]:
    """Give the parameters after each round."""
    setting = task.setting
    rules = AggregationRules(
        "examples" if setting.clip_norm is None else "uniform",
        exact=setting.noise_multiplier is not None,
    )
    model = create_model(setting.model, setting.vocabulary_size)
    work = ClientWork(model, LocalTraining(setting.batch_size), make_compressor("float32"), rules)
    engine = CohortEngine(work, InMemoryData(list(task.clients.values())), setting.length, devices=jax.devices()[:1])
    optimization = FederatedOptimization(
        ServerOptimizerConfig(server, epsilon=setting.epsilon), setting.server_rate, setting.client_rate, seed=0
    )
    averaging = averaging or WeightedMean(setting.clip_norm)
    start = optimization.first_state(jax.tree_util.tree_map(jnp.asarray, task.params))
    sampler = EveryClient(len(task.clients))
    for finished in Rounds(
        start, range(setting.rounds), engine, sampler, optimization=optimization, averaging=averaging
    ):
        yield jax.tree_util.tree_map(np.asarray, finished.state.params)
