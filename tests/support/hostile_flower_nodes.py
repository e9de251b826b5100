"""Runs a strategy of ours over Flower's messages with nodes that lie; in the environment of the peers."""

import json
import sys
from io import BytesIO

import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedlm.fl_core.client_algorithms.evaluate import Evaluate
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.mechanisms.tree import Trees
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.private_rounds import AdaptiveClipping, PrivateAggregation
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.rounds.local_sgd import LocalTraining
from fedlm.fl_core.rounds.server_optimizers import ServerOptimizerConfig
from fedlm.interop.flower import FedlmStrategy, NoUpdateError, make_client_app

SHAPE, MOVE = (4,), 0.5


class Nodes:
    def __init__(self, count):
        self._count = count

    def get_node_ids(self):
        return list(range(self._count))


def array(data, shape=SHAPE, dtype="float32"):
    return Array(dtype=dtype, shape=tuple(shape), stype="numpy.ndarray", data=data)


def saved(values):
    file = BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()


def many():
    file = BytesIO()
    np.savez(file, x=np.zeros(4))
    return file.getvalue()


def honest(metrics=None):
    sent = {"num-examples": 1.0, "train-loss": 1.0, "train-tokens": 1.0} | (metrics or {})
    return {"arrays": ArrayRecord({"x": Array(np.full(SHAPE, -MOVE, np.float32))}), "metrics": MetricRecord(sent)}


HUGE = saved(np.zeros(4, np.float32)).replace(b"(4,), }" + b" " * 12, b"(4000000000000,), }")
LIES = {
    "empty": {"arrays": ArrayRecord({"x": array(b"")})},
    "zip": {"arrays": ArrayRecord({"x": array(b"PK\x03\x04rest")})},
    "cut off": {"arrays": ArrayRecord({"x": array(saved(np.zeros(SHAPE, np.float32))[:-3])})},
    "several": {"arrays": ArrayRecord({"x": array(many())})},
    "pickle": {"arrays": ArrayRecord({"x": array(saved(np.array([{}], object)))})},
    "huge": {"arrays": ArrayRecord({"x": array(HUGE)})},
    "kind": {"arrays": MetricRecord({"x": 1.0})},
    "nothing": {},
    "metrics": {"metrics": ArrayRecord({"num-examples": Array(np.zeros(1))})},
    "list": {"metrics": MetricRecord({"num-examples": [1.0, 2.0]})},
    "no number": honest({"num-examples": float("nan")}),
    "endless": honest({"num-examples": float("inf")}),
    "below": honest({"num-examples": -1.0}),
    "loss": honest({"train-loss": float("nan")}),
}


def reply_to(message, content):
    if content is None:
        return Message(Error(code=0, reason="it broke"), reply_to=message)
    return Message(RecordDict(content), reply_to=message)


def lied_to():
    """What a round comes to in which one node of two lies, and the other answers twice."""
    found = {}
    for name, lie in [*LIES.items(), ("error", None)]:
        server = FedlmStrategy({"x": jnp.zeros(SHAPE)}, ServerOptimizerConfig("fedavg"), 1.0, 2)
        first, second = server.configure_train(1, server.arrays, ConfigRecord(), Nodes(2))
        content = lie if lie is None else honest() | lie if lie else {}
        try:
            replies = [reply_to(first, content), reply_to(second, honest()), reply_to(second, honest())]
            _, metrics = server.aggregate_train(1, replies)
            found[name] = [float(server.state.params["x"][0]), metrics["clients"], metrics["dropped"]]
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def nobody():
    """What a private round says in which nobody's update counts."""
    bound = BoundedParticipation(max_participations=1)
    plan = PrivacyPlan(mechanism="tree", rounds=1, noise_multiplier=1.0, participation=bound)
    found = {}
    for name, lie in {"all failed": None, "all lied": LIES["nothing"], "nobody was asked": None}.items():
        aggregation = PrivateAggregation(plan, 0.3, report_goal=2)
        params, fedavg = {"x": jnp.zeros(SHAPE)}, ServerOptimizerConfig("fedavg")
        server = FedlmStrategy.private(params, aggregation, fedavg, 1.0, cohort_size=2, least_nodes=0)
        nodes = Nodes(0 if name == "nobody was asked" else 2)
        messages = server.configure_train(1, server.arrays, ConfigRecord(), nodes)
        try:
            server.aggregate_train(1, [reply_to(one, lie) for one in messages])
        except NoUpdateError as error:
            found[name] = str(error)
        assert not np.asarray(server.state.params["x"]).any(), "a round that is none adds no noise"
    return found


def begun_again():
    """After which rounds the clip norm moved, where `start` was called for three rounds, and then for five."""
    bound = BoundedParticipation(max_participations=8, min_separation=1)
    plan = PrivacyPlan(mechanism="tree", rounds=8, noise_multiplier=1.0, participation=bound, own=Trees(4))
    clipping = AdaptiveClipping(quantile=0.5, rate=0.2, count_noise=1.0)
    aggregation = PrivateAggregation(plan, 0.3, report_goal=2, adaptive_clipping=clipping)
    params, norms = {"x": jnp.zeros(SHAPE)}, []
    server = FedlmStrategy.private(params, aggregation, ServerOptimizerConfig("fedavg"), 1.0, cohort_size=2)
    for number in (1, 2, 3, 1, 2, 3, 4, 5):
        messages = server.configure_train(number, server.arrays, ConfigRecord(), Nodes(2))
        _, metrics = server.aggregate_train(number, [reply_to(one, honest()) for one in messages])
        norms.append(metrics["clip_norm"])
    before = [float(np.float32(0.3)), *norms]
    moved = [place for place, after in enumerate(norms) if after != before[place]]
    return {"moved": moved, "metrics": sorted(metrics)}


def refused():
    """Why no app is made of an evaluation, whose clients send no parameters back."""
    training = LocalTraining(batch_size=1, algorithm=Evaluate())
    try:
        make_client_app(None, training, 1.0, examples_of=lambda context: None)
    except ConfigurationError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    found = {"lied_to": lied_to(), "nobody": nobody(), "begun_again": begun_again(), "refused": refused()}
    json.dump(found, sys.stdout)
