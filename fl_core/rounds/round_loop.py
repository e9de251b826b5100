"""The round loop, written once: simulations and deployments differ only in the `CohortRunner` they bring."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedlm.fl_core.client_algorithms.interface import (
    ClientAlgorithm,
    changed_params,
    check_usable,
    gradient_of_all,
)
from fedlm.fl_core.client_algorithms.sgd import PLAIN_SGD
from fedlm.fl_core.randomness import device_key, host_rng
from fedlm.fl_core.rounds.aggregation import CohortAggregate, MeanUpdate, WeightedMean
from fedlm.fl_core.rounds.cohorts import CohortSampler
from fedlm.fl_core.rounds.server_optimizers import ServerOptimizer, ServerState, init_server, server_step
from fedlm.fl_core.rounds.tracing import span
from fedlm.models.base import Params


@dataclass(frozen=True)
class RoundPlan:
    """What the server asks of a cohort.

    Example:
      >>> plan = RoundPlan(round_number=3, clients=np.array([5, 2]), seed=0, learning_rate=0.5)
      >>> sorted(plan.shuffling(client=5).permutation(3).tolist())
      [0, 1, 2]
    """

    round_number: int  # counted from 0
    # int64 [cohort], distinct client indices; empty in a deployment, where whoever checks in may take part
    clients: np.ndarray
    seed: int  # the experiment's root seed; clients derive shuffling, dropout and rounding from it
    learning_rate: float
    # that they derive them from in its place; never in a deployment
    secret: bytes | None = field(default=None, repr=False)

    def shuffling(self, client: int) -> np.random.Generator:
        """Make the stream with which a client shuffles its examples in this round."""
        return host_rng(self._root, "shuffle", self.round_number, client)

    def dropout(self, client: int) -> np.random.Generator:
        """Make the stream of the keys by which a client drops activations in this round."""
        return host_rng(self._root, "dropout", self.round_number, client)

    def upload_key(self) -> jax.Array:
        """Make the key whose `fold_in` by a client's index rounds that client's upload."""
        return device_key(self._root, "upload", self.round_number)

    @property
    def _root(self) -> int | bytes:
        return self.seed if self.secret is None else self.secret


class CohortResult(NamedTuple):
    """What a cohort gave back."""

    aggregate: CohortAggregate
    steps: int
    bytes_down: int  # bytes sent to clients
    bytes_up: int  # bytes received from them
    asked: int | None = None  # clients that were asked, where the plan does not name them


class CohortRunner(Protocol):
    """Runs local training on a cohort: a simulation's engine, or real clients over the network."""

    def run(self, params: Params, plan: RoundPlan, clip_norm: float | None = None, memory: Any = ()) -> CohortResult:
        """Train a cohort from the server's parameters.

        Args:
          params: the server's; the runner must not change or donate them.
          clip_norm: that updates of this round are scaled down to; None leaves their norms alone.
          memory: what the client algorithm remembers, which clients are sent with the parameters.

        Returns:
          The aggregate, whose `delta` the caller uses up, and what it cost.
        """
        ...

    def announce(self, plan: RoundPlan) -> None:
        """Learn the plan of the cohort after the one that runs next, so that its data can be made ready meanwhile: the
        very object that `run` will be given, unless the run ends before."""
        ...


class Averaging(Protocol):
    """Makes of a cohort's sum the mean update that the server steps with, with noise or without."""

    def init(self) -> Any:
        """Make its state before the first round."""
        ...

    def clip_norm(self, state: Any) -> float | None:
        """Say what updates of the next round are clipped to; None leaves their norms alone."""
        ...

    def next(self, state: Any, aggregate: CohortAggregate, round_number: int) -> MeanUpdate:
        """Make the mean of a round; the aggregate's `delta` may be used up."""
        ...


class PlainAveraging(Averaging, Protocol):
    """Averaging of a run without privacy, whose state follows from the run's metrics."""

    def after(self, rows: list[dict[str, Any]]) -> Any:
        """Find its state after the rounds of these metrics rows."""
        ...


class RoundResult(NamedTuple):
    """One finished round."""

    round_number: int  # counted from 0
    state: ServerState  # of the server after the round
    # what the cohort gave back, but for the sum of its updates, which the server's step has used up
    cohort: CohortResult
    cohort_size: int
    mean: MeanUpdate  # what is known of the mean that the server stepped with; the mean itself is used up


@dataclass(frozen=True)
class FederatedOptimization:
    """The algorithm's settings that the round loop needs."""

    server: ServerOptimizer
    server_learning_rate: float
    client_learning_rate: float
    seed: int
    server_warmup_rounds: int = 0  # rounds over which the server's rate grows, in equal steps, to its full size
    algorithm: ClientAlgorithm = PLAIN_SGD  # that of the runner's clients
    secret: bytes | None = field(default=None, repr=False)  # see `RoundPlan`

    def first_state(self, params: Params) -> ServerState:
        """Make the state before round 0 from the model's first parameters. Raises ConfigurationError where the server
        optimizer or the client algorithm cannot be used with them."""
        check_usable(self.algorithm, params)
        memory = jax.tree_util.tree_map(jnp.asarray, self.algorithm.init_server(params))
        return init_server(self.server, params)._replace(algorithm=memory)

    def server_rate(self, round_number: int) -> float:
        """Compute the server optimizer's learning rate in a round."""
        return self.server_learning_rate * min(1.0, (round_number + 1) / max(self.server_warmup_rounds, 1))


class Rounds:
    """Rounds of training one by one; iterating runs the next.

    Attributes:
      state: of the server, after the latest round.
      averaging_state: of what makes means, after it.
    """

    def __init__(
        self,
        state: ServerState,
        rounds: range,
        runner: CohortRunner,
        sampler: CohortSampler,
        *,
        optimization: FederatedOptimization,
        averaging: Averaging | None = None,
        averaging_state: Any = None,
        in_place: bool = False,
    ):
        """Run nothing yet.

        Args:
          rounds: the round numbers to run; to resume, start where the state was saved.
          averaging: makes means of the sums of rounds; `WeightedMean` where None.
          averaging_state: its state before the first of these rounds; its first where None.
          in_place: every step uses up the state before it, that of the first round too, whose memory the next one
            takes; nobody else may hold its arrays then.
        """
        self._rounds, self._runner, self._sampler = rounds, runner, sampler
        self._optimization, self._in_place = optimization, in_place
        self._averaging = averaging or WeightedMean()
        self.state = state
        self.averaging_state = self._averaging.init() if averaging_state is None else averaging_state

    def go_back(self, state: ServerState, averaging_state: Any) -> None:
        """Let these states take the place of those after the latest round."""
        self.state, self.averaging_state = state, averaging_state

    def __iter__(self) -> Iterator[RoundResult]:
        plans = map(self._plan, self._rounds)
        plan = next(plans, None)
        while plan is not None:
            following = next(plans, None)
            if following is not None:
                self._runner.announce(following)
            yield self._run(plan)
            plan = following

    def _plan(self, round_number: int) -> RoundPlan:
        settings = self._optimization
        cohort = self._sampler.sample(round_number)
        return RoundPlan(round_number, cohort, settings.seed, settings.client_learning_rate, settings.secret)

    def _run(self, plan: RoundPlan) -> RoundResult:
        settings, state = self._optimization, self.state
        clip_norm = self._averaging.clip_norm(self.averaging_state)
        cohort = self._runner.run(state.params, plan, clip_norm, state.algorithm)
        with span("averaging"):
            mean = self._averaging.next(self.averaging_state, cohort.aggregate, plan.round_number)
        cohort = cohort._replace(aggregate=cohort.aggregate._replace(delta={}))
        if not settings.algorithm.trains:
            mean = _reported(settings.algorithm, mean)
        if mean.delta is not None:
            rate = settings.server_rate(plan.round_number)
            step, before = (_step_in_place, _distinct(state)) if self._in_place else (_step, state)
            state = step(settings.server, settings.algorithm, before, mean.delta, learning_rate=rate)
            mean = mean._replace(delta=None)
        if mean.restart:
            state = init_server(settings.server, state.params)._replace(algorithm=state.algorithm)
        self.state, self.averaging_state = state, mean.state
        asked = len(plan.clients) if cohort.asked is None else cohort.asked
        return RoundResult(plan.round_number, state, cohort, asked, mean)


def _reported(algorithm: ClientAlgorithm, mean: MeanUpdate) -> MeanUpdate:
    """Let nothing be known of what clients sent but what the algorithm says of the sum, with its noise."""
    if mean.delta is None:
        return mean._replace(metrics={})
    total = jax.tree_util.tree_map(lambda leaf: np.asarray(leaf, np.float64) * mean.divisor, mean.delta)
    return mean._replace(delta=None, metrics=algorithm.report(total, mean.noise * mean.divisor))


def _distinct(state: ServerState) -> ServerState:
    """Copy arrays that a state holds more than once: only one of them can be used up."""
    seen = set[int]()

    def once(leaf: Any) -> Any:
        if id(leaf) in seen:
            return jnp.copy(leaf)
        seen.add(id(leaf))
        return leaf

    return jax.tree_util.tree_map(once, state)


def _next_state(
    server: ServerOptimizer, algorithm: ClientAlgorithm, state: ServerState, mean: Any, *, learning_rate: jax.Array
) -> ServerState:
    pseudo_gradient, memory = algorithm.update_server(state.algorithm, mean)
    after = server_step(server, state, gradient_of_all(pseudo_gradient, state.params), learning_rate)
    return after._replace(params=changed_params(pseudo_gradient, after.params, state.params), algorithm=memory)


# Means are as large as models: their memory is used again for what is made of them; in place, that of states.
_step = jax.jit(_next_state, static_argnums=(0, 1), donate_argnums=3)
_step_in_place = jax.jit(_next_state, static_argnums=(0, 1), donate_argnums=2)


def compile_step(optimization: FederatedOptimization, state: ServerState, mean: Any) -> None:
    """Compile a server's step ahead of the first round.

    Args:
      optimization: whose step it is.
      state: shapes, dtypes and places of its arrays.
      mean: those of the mean.
    """
    _step.lower(optimization.server, optimization.algorithm, state, mean, learning_rate=1.0).compile()
