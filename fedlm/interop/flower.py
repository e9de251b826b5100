"""Flower: our local training as a `ClientApp`, and our aggregation, noise and server optimizers as a strategy.

Parameters travel as Flower's own apps send them: arrays by name, of which a client sends back those that it has
trained. So our clients train for Flower's strategies too, and clients of other kinds for ours. Updates are not
compressed.
"""

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedlm.fl_core.client_algorithms.interface import Broadcast
from fedlm.fl_core.errors import ConfigurationError, UserError, setting
from fedlm.fl_core.privacy.noise.noise_source import fresh_secret
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation, EpochParticipation
from fedlm.fl_core.privacy.private_rounds import PrivateAggregation, PrivateRounds
from fedlm.fl_core.rounds.aggregation import (
    AggregationRules,
    CohortAggregate,
    WeightedMean,
    add_aggregates,
    contribution,
    empty_aggregate,
)
from fedlm.fl_core.rounds.local_sgd import LocalTraining, TrainingSums, train_client
from fedlm.fl_core.rounds.round_loop import Averaging, RoundPlan
from fedlm.fl_core.rounds.server_optimizers import ServerOptimizer, ServerState, init_server, server_step
from fedlm.interop.parameters import flatten, unflatten
from fedlm.models.base import Model, Params

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
"""Keys of the records in messages, as Flower's strategies have them."""
_SECONDS_BETWEEN_LOOKS = 1.0


def _why_none(asked: int, replies: Iterable[Message]) -> str:
    """Say why no update of a round counts."""
    if not asked:
        return (
            "no node was asked, since all that are connected have taken part as often, or as lately, as the plan "
            "allows; run fewer rounds, ask fewer nodes a round, or connect more"
        )
    reasons = [(reply.error.reason or "it gave no reason").strip() for reply in replies if reply.has_error()]
    first = f"the first failure was: {reasons[0].splitlines()[-1]}" if reasons else "see what the client app sends"
    return f"none of the {asked} nodes that were asked sent an update that counts, and {len(reasons)} failed; {first}"


def arrays_from_params(params: Params) -> ArrayRecord:
    """Name parameters by their paths, such as `recurrent/input/kernel`."""
    return ArrayRecord({name: Array(np.asarray(leaf)) for name, leaf in flatten(params).items()})


def params_from_arrays(arrays: ArrayRecord) -> Params:
    """Undo `arrays_from_params`: NumPy arrays."""
    return unflatten({name: array.numpy() for name, array in arrays.items()})


def make_client_app(
    model: Model,
    training: LocalTraining,
    learning_rate: float,
    *,
    examples_of: Callable[[Context], np.ndarray],
    seed: int = 0,
) -> ClientApp:
    """Make the app that trains a client.

    Args:
      model: whose parameters the server sends.
      training: how, by SGD or another algorithm whose server remembers nothing.
      learning_rate: of the local steps.
      examples_of: maps what Flower knows of a node to its examples, int32 [examples, length + 1].
      seed: from which, the round and the node its shuffling follows.

    Returns:
      The app. Its replies have parameters, and as metrics `num-examples`, `train-loss` (a token) and `train-tokens`.

    Raises:
      ConfigurationError: the algorithm's server remembers something, or it does not train, or the model has dropout.
    """
    if not training.algorithm.trains:
        raise ConfigurationError(
            f"{setting('client_algorithm')} is {type(training.algorithm).__name__}, which trains nothing; give one "
            "that trains, and evaluate on devices with `fedlm serve`"
        )
    if training.draws_dropout:
        raise ConfigurationError("draws_dropout is on, but no keys of dropout travel over Flower; leave it off")
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        params = jax.tree_util.tree_map(jnp.asarray, params_from_arrays(message.content[ARRAYS]))
        algorithm = training.algorithm
        if jax.tree_util.tree_leaves((algorithm.init_server(params), algorithm.init_client(params))):
            raise ConfigurationError(
                f"{setting('client_algorithm')} is {type(algorithm).__name__}, whose server or clients remember what "
                "does not travel here"
            )
        node = int(context.node_config.get("partition-id", context.node_id))
        plan = RoundPlan(int(message.content[CONFIG]["server-round"]) - 1, np.array([node]), seed, learning_rate)
        examples = examples_of(context)
        local, sums = train_client(
            model, Broadcast(params), examples, training, rng=plan.shuffling(node), learning_rate=plan.learning_rate
        )
        tokens = float(sums.tokens)
        metrics = {
            "num-examples": int(training.count_examples(len(examples))),
            "train-loss": float(sums.loss) / max(tokens, 1.0),
            "train-tokens": tokens,
        }
        content = {ARRAYS: arrays_from_params(local.params), METRICS: MetricRecord(metrics)}
        return Message(RecordDict(content), reply_to=message)

    return app


class NoUpdateError(UserError):
    """No node of a cohort gave an update that counts, so that there is no round."""


class FedlmStrategy(Strategy):
    """Our server: it screens, clips and weighs each update, adds noise, and steps with a server optimizer.

    An update is what a client's arrays are less than those that it was sent, as a pseudo-gradient; a reply of other
    arrays or of no number of examples, a second one, or one of a node that was not asked, counts for nothing. State
    lives in this process alone: there is no checkpoint and no ledger, so that a private strategy adds the noise of its
    plan and lets nobody take part more often than that, also where `start` is called again, but states no epsilon, and
    must not be made a second time for the same clients. A round in which nobody's update counts raises `NoUpdateError`.
    """

    def __init__(
        self,
        params: Params,
        server: ServerOptimizer,
        server_learning_rate: float,
        cohort_size: int,
        *,
        rules: AggregationRules | None = None,
        averaging: Averaging | None = None,
        participation: BoundedParticipation | EpochParticipation | None = None,
        least_nodes: int | None = None,
    ) -> None:
        """Begin from parameters; use `private` for noise.

        Args:
          params: of round 0.
          server: the server optimizer.
          server_learning_rate: of it.
          cohort_size: nodes that are asked in a round.
          rules: how updates are treated; a mean by examples where None.
          averaging: clips updates and makes means of sums; without clipping, that of the weights where None.
          participation: how often, and how soon again, a node may be asked; None for no limit.
          least_nodes: that must be connected before a round; the cohort's size where None.
        """
        self.state: ServerState = init_server(server, jax.tree_util.tree_map(jnp.asarray, params))
        self._server, self._rate, self._cohort_size = server, server_learning_rate, cohort_size
        self._rules, self._averaging = rules or AggregationRules(), averaging or WeightedMean()
        self._averaging_state = self._averaging.init()
        self._participation, self._least = participation, cohort_size if least_nodes is None else least_nodes
        # Rounds are numbered here, from 0: Flower's numbers begin again with each `start`, and noise does not.
        self._round = 0
        self._rounds_of: dict[int, list[int]] = {}
        self._asked: set[int] = set()

    @classmethod
    def private(
        cls,
        params: Params,
        aggregation: PrivateAggregation,
        server: ServerOptimizer,
        server_learning_rate: float,
        *,
        cohort_size: int,
        least_nodes: int | None = None,
    ) -> Self:
        """Begin DP-FTRL, or another mechanism of a plan, with noise from the operating system's entropy.

        Raises:
          ConfigurationError: the plan does not bound how often a client takes part.
        """
        participation = aggregation.plan.participation
        limits = participation.limits()
        if limits is None:
            raise ConfigurationError(
                f"the plan's participation is {type(participation).__name__}, but Flower's nodes come as they come; "
                "give a plan with BoundedParticipation"
            )
        rules = AggregationRules("uniform", exact=True)
        averaging = PrivateRounds(aggregation, fresh_secret(), jax.tree_util.tree_map(jnp.asarray, params))
        return cls(
            params,
            server,
            server_learning_rate,
            cohort_size,
            rules=rules,
            averaging=averaging,
            participation=limits,
            least_nodes=least_nodes,
        )

    @property
    def arrays(self) -> ArrayRecord:
        """The parameters as they are, for the `initial_arrays` of `start`."""
        return arrays_from_params(self.state.params)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        while len(connected := sorted(grid.get_node_ids())) < self._least:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        allowed = [node for node in connected if self._may_take_part(node)]
        chosen = random.SystemRandom().sample(allowed, min(self._cohort_size, len(allowed)))
        self._asked = set(chosen)
        for node in chosen:
            self._rounds_of.setdefault(node, []).append(self._round)
        config["server-round"] = server_round
        content = RecordDict({ARRAYS: self.arrays, CONFIG: config})
        return [Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node) for node in chosen]

    def _may_take_part(self, node: int) -> bool:
        bound = self._participation
        return bound is None or bound.may(self._rounds_of.get(node, []), self._round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        aggregate = empty_aggregate(self.state.params, self._rules.exact)
        clip_norm = self._averaging.clip_norm(self._averaging_state)
        asked, replies = len(self._asked), list(replies)
        for reply in replies:
            if reply.metadata.src_node_id in self._asked:
                self._asked.discard(reply.metadata.src_node_id)
                aggregate = add_aggregates(aggregate, self._contribution(reply, clip_norm))
        if aggregate.clients <= aggregate.dropped:
            raise NoUpdateError(f"round {server_round}: {_why_none(asked, replies)}")
        mean = self._averaging.next(self._averaging_state, aggregate, self._round)
        self._averaging_state, self._round = mean.state, self._round + 1
        if mean.delta is None:
            return None, None
        self.state = server_step(self._server, self.state, mean.delta, jnp.asarray(self._rate))
        if mean.restart:
            self.state = init_server(self._server, self.state.params)
        return self.arrays, MetricRecord(self._metrics(aggregate, mean.metrics))

    def _contribution(self, reply: Message, clip_norm: float | None) -> CohortAggregate:
        like = flatten(self.state.params)
        try:
            found = {name: array.numpy() for name, array in reply.content[ARRAYS].items()}
            metrics: Mapping[str, Any] = reply.content[METRICS]
            examples, loss, tokens = (
                float(metrics.get(name, 0.0)) for name in ("num-examples", "train-loss", "train-tokens")
            )
            if {name: (array.shape, array.dtype) for name, array in found.items()} != {
                name: (leaf.shape, leaf.dtype) for name, leaf in like.items()
            }:
                raise ValueError("other arrays")
            if not 0 <= examples < math.inf:
                raise ValueError("no number of examples")
        except Exception:
            # A node may send anything, and what reads it raises errors of many kinds; none may end a run.
            one = jnp.ones(())
            return empty_aggregate(self.state.params, self._rules.exact)._replace(clients=one, dropped=one)
        delta = jax.tree_util.tree_map(
            lambda before, after: before - jnp.asarray(after), self.state.params, unflatten(found)
        )
        sums = TrainingSums(*map(jnp.asarray, (loss * tokens, tokens, 0.0)))
        return contribution(delta, jnp.asarray(examples, jnp.float32), sums, self._rules, clip_norm=clip_norm)

    def _metrics(self, aggregate: CohortAggregate, of_mean: Mapping[str, Any]) -> dict[str, Any]:
        if self._participation is not None and self._rules.exact:
            # What depends on clients in another way than through the noised mean is nobody's to see. So is how long the
            # noise is: who knows all updates but one would find out by it which mean it was added to.
            return {"clip_norm": of_mean["clip_norm"]}
        tokens = float(aggregate.training.tokens)
        return {
            "clients": float(aggregate.clients),
            "dropped": float(aggregate.dropped),
            "train-loss": float(aggregate.training.loss) / max(tokens, 1.0),
        }

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """Say nothing: `start` calls it before the first round."""
