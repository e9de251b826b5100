"""What the axes cost: hours of a CPU core, worked out from trainings that were done, or from a few local steps."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.architectures.axes.points import BATCH_SIZE, EVALUATE_EVERY, LENGTH, Axis, Point, Setting
from benchmarks.architectures.axes.records import Records
from benchmarks.architectures.axes.selection import Task, left_of
from benchmarks.architectures.axes.training import (
    HELDOUT_EXAMPLES,
    TEST_EXAMPLES,
    device_clock,
    device_kind,
    mean_steps,
)
from fedlm.models.base import Batch, batch_loss
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.experiments.federated_models import create_federated_model

_FORWARD_SHARE = 0.35  # of a step's time that scoring a batch takes, by measurement
_START = 4.0  # seconds until a part of a training has begun, by measurement
_LONG = 60.0  # seconds of a training from which it tells what a step takes
_STEPS = 20
_SHAPE = tuple[str, str, str]


class Costs:
    """Seconds of a CPU core, or of an accelerator where there is one, by local step.

    Attributes:
      measured: seconds of a step by family of models, size and data.
    """

    def __init__(self, stores: dict[str, Path], records: Records, measured: dict[_SHAPE, float] | None = None):
        """Take what trainings took, where there are any; `measured` stands in place of measuring steps."""
        self._stores = stores
        self.measured = dict(measured or {})
        spent: dict[_SHAPE, list[float]] = {}
        for run, found in records.runs.items():
            if found["seconds"] < _LONG or found.get("device", "cpu") != device_kind():
                continue
            steps = found["steps"] + self._scoring(found["rounds"], run.setting.data)
            shape = (_family(run.model), run.setting.size, run.setting.data)
            spent.setdefault(shape, []).append((found["seconds"] - _START) / steps)
        self.measured |= {shape: float(np.median(times)) for shape, times in spent.items()}

    def step(self, model: str, setting: Setting) -> float:
        """Give the seconds of a local step."""
        shape = (_family(model), setting.size, setting.data)
        if shape not in self.measured:
            self.measured[shape] = _time_step(f"{shape[0]}_{setting.size}", self._stores[setting.data])
        return self.measured[shape]

    def training(self, model: str, setting: Setting, rounds: float) -> float:
        """Give the seconds of so many rounds."""
        steps = rounds * setting.cohort * mean_steps(self._stores[setting.data], setting)
        return (steps + self._scoring(rounds, setting.data)) * self.step(model, setting)

    def _scoring(self, rounds: float, data: str) -> float:
        """Give how many local steps take as long as scoring does."""
        batches = (HELDOUT_EXAMPLES / EVALUATE_EVERY + TEST_EXAMPLES / 40) / BATCH_SIZE
        return rounds * batches * _FORWARD_SHARE

    def task(self, task: Task, records: Records) -> float:
        """Give the seconds of what is left of a training."""
        run, rounds = task
        done = records.runs[run]["rounds"] if run in records.runs else 0
        return _START + self.training(run.model, run.setting, max(rounds - done, 0))

    def point(self, records: Records, point: Point, model: str) -> float:
        """Give the seconds that are left of a model at a point."""
        left = left_of(records, point, model)
        return _START * left.parts + (self.training(model, point.setting, left.rounds) if left.rounds else 0.0)

    def axis(self, records: Records, axis: Axis) -> float:
        """Give the seconds that are left of an axis, no more than those: points that share trainings cost less."""
        return sum(self.point(records, point, model) for point in axis.points for model in axis.models)


class Estimate(NamedTuple):
    """What is left of an axis."""

    axis: str
    core_hours: float

    def line(self, workers: int) -> str:
        """Say it."""
        return (
            f"{self.axis}: at most {self.core_hours:.1f} hours of a core, {self.core_hours / workers:.1f} on {workers}"
        )


def estimate(costs: Costs, records: Records, axes: dict[str, Axis]) -> list[Estimate]:
    """Say what is left of some axes."""
    return [Estimate(name, costs.axis(records, axis) / 3600) for name, axis in axes.items()]


def _family(model: str) -> str:
    """Name the model that takes about as long."""
    return "transformer" if "transformer" in model else "cifg"


def _time_step(name: str, store: Path) -> float:
    """Time local steps of a model."""
    data = TokenStore.open(store)
    model = create_federated_model(name, data.vocabulary_size, data.special_tokens)
    rows = data.split("train").sequences(int(np.argmax(data.split("train").num_examples)), LENGTH)[:BATCH_SIZE]
    batch = Batch(jnp.asarray(rows), jnp.ones(len(rows)))

    @jax.jit
    def step(params: Any) -> Any:
        gradient = jax.grad(lambda params: batch_loss(model, params, batch)[0])(params)
        return jax.tree_util.tree_map(lambda leaf, slope: leaf - 0.1 * slope, params, gradient)

    params = jax.block_until_ready(step(model.init(jax.random.key(0))))
    began = device_clock()
    for _ in range(_STEPS):
        params = step(params)
    jax.block_until_ready(params)
    return (device_clock() - began) / _STEPS
