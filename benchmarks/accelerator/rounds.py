"""Rounds of federated training: clients and local steps a second, against a bare loop and against the roofline.

Clients have as many sentences as users of Stack Overflow, full rows of words with Zipf's frequencies; they take at most
120 local steps of 10 sentences, uploads are of 8 bits. The bare loop takes SGD steps of the same models, as many lanes
at a time, on batches that lie on the device, and knows nothing of clients.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.accelerator import matrix_products
from benchmarks.accelerator.timing import first_seconds, memory_now, time_runs
from fedlm.fl_core.rounds.aggregation import AggregationRules
from fedlm.fl_core.rounds.local_sgd import LocalTraining, local_step
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.fl_core.updates.registry import COMPRESSION_OF_BITS, make_compressor
from fedlm.models.base import Batch, Model, Params, parameter_count
from fedlm.models.precision import Precision, precision_scope, with_precision
from fedlm.models.registry import create_model
from fedlm.models.special_tokens import SPECIAL_TOKENS
from fedlm.simulations.data.federated_data import InMemoryData
from fedlm.simulations.engine.cohort_engine import ClientWork, CohortEngine
from fedlm.simulations.engine.lane_count import choose_lanes

LEARNING_RATE = 0.1
UPLOAD_BITS = 8
STEPS_PER_CHUNK = 32
FLOAT32_BYTES = 4


def client_sizes(clients: int) -> np.ndarray:
    """Draw how many sentences users have, Pareto with Stack Overflow's minimum of 100 and mean of 397, whatever the few
    largest are."""
    least, mean, most = 100, 397, 200_000
    uniform = (np.random.default_rng(0).permutation(clients) + 0.5) / clients
    excess = np.minimum(least * uniform ** (-(mean - least) / mean), most) - least
    return (least + excess * (mean - least) / excess.mean()).astype(int)


def measure(
    model: str,
    precision: Precision,
    lanes: int | None,
    clients: int,
    most_steps: int,
    length: int,
    vocabulary: int,
    patience: float,
) -> dict[str, Any]:
    """Time rounds and the bare loop.

    Args:
      model: its name.
      precision: what it computes in.
      lanes: clients that a device trains together; as many as a run would choose where None.
      clients: of a round.
      most_steps: local steps that a client takes at most.
      length: target tokens of a sentence.
      vocabulary: number of token ids.
      patience: seconds of timing, of rounds and of the loop each.
    """
    training, data = LocalTraining(max_batches=most_steps), draw_clients(clients, vocabulary, length, most_steps)
    built = with_precision(create_model(model, vocabulary), precision)
    params = built.init(jax.random.key(0))
    local_steps = training.count_steps(data.num_examples)
    chosen = lanes or choose_lanes(parameter_count(built), clients, local_steps)
    with precision_scope(precision):
        engine = CohortEngine(
            client_work(built, training),
            data,
            length,
            devices=None,
            lanes_per_device=chosen,
            steps_per_chunk=STEPS_PER_CHUNK,
        )
        rounds = Rounds(engine, params, clients)
        compiled = first_seconds(lambda: rounds.run(2 * jax.local_device_count()))
        measured = time_runs(rounds.run, patience, least=1, most=5)
        steps = int(local_steps.sum())
        bare = bare_loop_seconds(built, params, chosen, length, patience)
        products = matrix_products.products_of(
            lambda params, batch: local_step(built, params, batch, learning_rate=LEARNING_RATE, gradient_clip=None)[0],
            params,
            draw_batches(built, (training.batch_size,), length),
        )
    return {
        "parameters": parameter_count(built),
        "lanes": chosen,
        "devices": jax.local_device_count(),
        "clients": clients,
        "steps": steps,
        "seconds": measured.as_json(),
        "seconds_of_first_round": round(compiled, 2),
        "clients_per_second": clients / measured.median,
        "steps_per_second": steps / measured.median,
        "tokens_per_second": int(np.minimum(data.num_examples, most_steps * 10).sum()) * length / measured.median,
        "bare_steps_per_second": chosen * jax.local_device_count() / bare,
        "products_a_step": matrix_products.as_json(products),
        **other_bytes(params),
        "memory": memory_now(),
    }


def draw_clients(clients: int, vocabulary: int, length: int, most_steps: int) -> InMemoryData:
    """Draw clients of Stack Overflow's sizes, of whom no more than what they may train on is kept."""
    rng = np.random.default_rng(0)
    sizes = np.minimum(client_sizes(clients), most_steps * LocalTraining().batch_size)
    rows = _draw_rows(rng, int(sizes.sum()), length, vocabulary)
    return InMemoryData(np.split(rows, np.cumsum(sizes)[:-1]))


def draw_batches(model: Model, shape: tuple[int, ...], length: int) -> Batch:
    """Draw full rows: tokens [*shape, length + 1]."""
    rows = _draw_rows(np.random.default_rng(1), math.prod(shape), length, model.vocabulary_size)
    return Batch(jnp.asarray(rows.reshape(*shape, length + 1)), jnp.ones(shape))


def _draw_rows(rng: np.random.Generator, rows: int, length: int, vocabulary: int) -> np.ndarray:
    words = np.arange(len(SPECIAL_TOKENS), vocabulary)
    upto = np.cumsum(1 / np.arange(1, len(words) + 1))
    return words[np.searchsorted(upto, rng.random((rows, length + 1)) * upto[-1])].astype(np.int32)


def client_work(model: Model, training: LocalTraining) -> ClientWork:
    return ClientWork(model, training, make_compressor(COMPRESSION_OF_BITS[UPLOAD_BITS]), AggregationRules())


class Rounds:
    """Rounds of one engine, each of whose input is made while the one before computes, as in a run."""

    def __init__(self, engine: CohortEngine, params: Params, clients: int):
        self._engine, self._params = engine, params
        self._plans = (RoundPlan(number, np.arange(clients), 0, LEARNING_RATE) for number in range(1, 10**6))
        self._next = next(self._plans)

    def run(self, only: int | None = None) -> Any:
        """Run a round, of so many clients alone where it is a first one that is not timed; gives the aggregate."""
        if only is not None:
            plan = RoundPlan(0, self._next.clients[:only], 0, LEARNING_RATE)
            self._engine.announce(self._next)
            return self._engine.run(self._params, plan, clip_norm=1.0).aggregate
        plan, self._next = self._next, next(self._plans)
        self._engine.announce(self._next)
        return self._engine.run(self._params, plan, clip_norm=1.0).aggregate


def bare_loop_seconds(model: Model, params: Params, lanes: int, length: int, patience: float) -> float:
    """Time a step of SGD of so many lanes on the first device."""
    device = jax.local_devices()[0]
    batch_size = LocalTraining().batch_size
    batches = jax.device_put(draw_batches(model, (STEPS_PER_CHUNK, lanes, batch_size), length), device)
    copies = jax.jit(lambda params: jax.tree_util.tree_map(lambda leaf: jnp.stack([leaf] * lanes), params))

    @functools.partial(jax.jit, donate_argnums=0)
    def loop(params: Params, batches: Batch) -> Params:
        def one(params: Params, batch: Batch) -> Params:
            return local_step(model, params, batch, learning_rate=LEARNING_RATE, gradient_clip=None)[0]

        if lanes == 1:
            params = jax.tree_util.tree_map(lambda leaf: leaf[0], params)
            cut = jax.tree_util.tree_map(lambda leaf: leaf[:, 0], batches)
            stepped = jax.lax.scan(lambda params, batch: (one(params, batch), None), params, cut)[0]
            return jax.tree_util.tree_map(lambda leaf: leaf[None], stepped)
        return jax.lax.scan(lambda params, batch: (jax.vmap(one)(params, batch), None), params, batches)[0]

    state = [copies(jax.device_put(params, device))]

    def run() -> Params:
        state[0] = loop(state[0], batches)
        return state[0]

    first_seconds(run)
    return time_runs(run, patience, least=2, most=20).median / STEPS_PER_CHUNK


def other_bytes(params: Params) -> dict[str, float]:
    """Bytes that a round must move beside those of its products: parameters, at a step's and at a client's end.

    A step of SGD reads parameters and gradients and writes parameters. An update reads the server's parameters, the
    client's and the sum, and writes the sum.
    """
    size = sum(leaf.size for leaf in jax.tree_util.tree_leaves(params)) * FLOAT32_BYTES
    return {"other_bytes_a_step": 3.0 * size, "bytes_a_client": 4.0 * size}
