"""Client algorithms of a program's own experiment."""

import dataclasses

import jax
import pytest

import fedlm
from fedlm.fl_core.client_algorithms.interface import LocalState
from fedlm.fl_core.errors import ConfigurationError
from tests.simulations.experiments.own_experiments import PRIVATE, SETTINGS, HalfSteps

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.long
def test_a_client_algorithm_by_object_is_what_clients_do(data):
    halves = fedlm.simulate(data=data, client_algorithm=HalfSteps(), **SETTINGS)
    plain = fedlm.simulate(data=data, **SETTINGS | {"client_learning_rate": 0.25})
    assert halves.rows[-1]["train_loss"] == pytest.approx(plain.rows[-1]["train_loss"], rel=1e-5)
    assert halves.summary["experiment"]["client_algorithm"] == "own()"
    by_object = fedlm.simulate(data=data, client_algorithm=fedlm.Sgd(), **SETTINGS | {"client_learning_rate": 0.25})
    assert by_object.summary["experiment"]["client_algorithm"] == "sgd"
    assert by_object.summary["parameters_sha256"] == plain.summary["parameters_sha256"]


@dataclasses.dataclass(frozen=True)
class Counting(fedlm.ClientAlgorithm):
    """Takes smaller steps the more it has taken, which it counts in a number of Python's."""

    def init(self, server):
        return LocalState(server.params, 0)

    def step(self, server, local, gradient, learning_rate):
        params = gradient.descend(local.params, learning_rate / (1 + local.memory))
        return LocalState(params, local.memory + 1)


@pytest.mark.long
def test_what_a_client_remembers_may_begin_as_a_number(data):
    settings = SETTINGS | {"client_algorithm": Counting(), "rounds": 1}
    losses = [fedlm.simulate(data=data, lanes_per_device=lanes, **settings).rows[-1]["train_loss"] for lanes in (1, 3)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@dataclasses.dataclass(frozen=True)
class Chatty(HalfSteps):
    """Sends its parameters twice."""

    def finish(self, server, local):
        return (super().finish(server, local),) * 2


class Unhashable(HalfSteps):
    __hash__ = None


class Undecorated(HalfSteps):
    """Has a constant that equality does not see."""

    def __init__(self, part):
        self.part = part


@pytest.mark.parametrize(
    ("algorithm", "what"),
    [
        (HalfSteps, "client_algorithm is the class HalfSteps"),
        (3, "client_algorithm is 3, but must be text, a ClientAlgorithm"),
        (Unhashable(), "cannot be hashed"),
        (Undecorated(0.5), "a Undecorated whose part is not a field"),
    ],
)
def test_what_is_no_client_algorithm_says_so(data, algorithm, what):
    with pytest.raises(ConfigurationError, match=what):
        fedlm.simulate(data=data, client_algorithm=algorithm, **SETTINGS)


def test_a_client_algorithm_that_sends_more_than_its_update_is_refused_privacy(data):
    with pytest.raises(ConfigurationError, match="sends more than its update"):
        fedlm.simulate(data=data, client_algorithm=Chatty(), **SETTINGS | PRIVATE)


@dataclasses.dataclass(frozen=True)
class Complex(HalfSteps):
    def finish(self, server, local):
        return jax.tree_util.tree_map(lambda leaf: leaf + 1j, local.params)


def test_a_client_algorithm_that_does_not_fit_is_refused_before_the_folder_is_touched(data, tmp_path):
    with pytest.raises(ConfigurationError, match=r"Complex.finish must make float32 arrays"):
        fedlm.simulate(data=data, client_algorithm=Complex(), out=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()
