"""Private means of sums with noise of every client: integers modulo a power of two.

In a simulation clients do what they would do before they mask their integers. The server gets the same sum that secure
aggregation would give it, whether they mask them then or not.
"""

import dataclasses
import hashlib
import hmac
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedlm.fedlm_client.distributed_noise.lattice import Lattice, rotation_seed, rounding_random
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.exact_sums import number_of_coordinates, shaped
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS, make_noise
from fedlm.fl_core.privacy.mechanisms.skellam import sizes_of
from fedlm.fl_core.privacy.private_rounds import PrivacyState, PrivateAggregation, PrivateRounds
from fedlm.fl_core.rounds.aggregation import CohortAggregate, MeanUpdate, add_aggregates, empty_aggregate
from fedlm.fl_core.rounds.round_loop import CohortResult, CohortRunner, RoundPlan
from fedlm.models.base import Params

# Most variance of a number that is rounded at random to one of its neighbours.
_ROUNDING = 0.25


def private_averaging(
    aggregation: PrivateAggregation, secret: bytes, like: Params, *, first: int = 0, end: int | None = None
) -> "PrivateRounds | DistributedRounds":
    """Make what makes private means by a plan; arguments are those of `PrivateRounds`."""
    distributed = MECHANISMS[aggregation.plan.mechanism].distributed
    return (DistributedRounds if distributed else PrivateRounds)(aggregation, secret, like, first=first, end=end)


class IntegerSum(NamedTuple):
    """The sum of a cohort's integers, noise included, and what is known of it.

    Attributes:
      residues: unsigned [D], modulo 2^b.
      rotation: public seed of the round's rotation.
      clients: whose noise is in it.
      wrapped: how many coordinates of the sum the residues are wrong about; None where only clients could tell.
      signal: L2 norm of the sum without noise, in integers; None likewise.
      noise: that of the noise; None likewise.
    """

    residues: NDArray[np.unsignedinteger]
    rotation: bytes
    clients: int
    wrapped: int | None = None
    signal: float | None = None
    noise: float | None = None


class CohortSum(Protocol):
    """Adds up the integers of a simulated round's clients, modulo 2^b."""

    def add(self, integers: NDArray[np.int64]) -> None:
        """Add those of the next client of the cohort, noise included."""
        ...

    def residues(self) -> NDArray[np.unsignedinteger]:
        """Give the sum, once the whole cohort is in it."""
        ...


BeginSum = Callable[[Lattice, RoundPlan, int], CohortSum]
"""Begins the sum of a round, which is given up with fewer than so many clients."""


class SumInTheClear:
    """A `CohortSum` of integers that are not masked."""

    def __init__(self, lattice: Lattice, plan: RoundPlan, least: int):
        self._lattice, self._sum = lattice, np.zeros(lattice.dimension, np.uint32)

    def add(self, integers: NDArray[np.int64]) -> None:
        self._sum = self._lattice.reduced(self._sum + integers)

    def residues(self) -> NDArray[np.unsignedinteger]:
        return self._sum


class DistributedRounds:
    """Private means with noise of clients; see `fedlm.fl_core.rounds.round_loop.Averaging`.

    Attributes:
      lattice: of clients' integers.
      least: clients of a round whose noise suffices.
    """

    def __init__(
        self, aggregation: PrivateAggregation, secret: bytes, like: Params, *, first: int = 0, end: int | None = None
    ):
        """Take a secret into use; arguments are those of `PrivateRounds`.

        Raises:
          ConfigurationError: the plan is for updates of another size.
        """
        plan, sizes = aggregation.plan, sizes_of(aggregation.plan)
        if number_of_coordinates(like) != sizes.coordinates:
            raise ConfigurationError(
                f"an update has {number_of_coordinates(like)} numbers, but the plan of the noise is for "
                f"{sizes.coordinates}"
            )
        self.aggregation, self.secret = aggregation, secret
        self.lattice = MECHANISMS[plan.mechanism].lattice(plan, aggregation.clip_norm)
        self._like, self.least = like, sizes.survivors
        self._count = make_noise(plan, first, end)

    def init(self, clip_norm: float | None = None) -> PrivacyState:
        """Make the state before the generation's first round; the clip norm never moves."""
        state = self._count.init(self._like)
        return PrivacyState(state, np.float32(self.aggregation.clip_norm), np.float32(0), np.int32(0))

    def durable(self, state: PrivacyState) -> PrivacyState:
        """Give what has to be kept of a state: all."""
        return state

    def restore(self, durable: PrivacyState) -> PrivacyState:
        """Undo `durable`."""
        return durable._replace(noise=self._count.restore(durable.noise, self._like, _nothing))

    def clip_norm(self, state: PrivacyState) -> float:
        return self.aggregation.clip_norm

    def over(self, runner: CohortRunner, begin_sum: BeginSum | None = None) -> CohortRunner:
        """Let each client of a simulated cohort do what clients do with their updates, and add up in the clear or as it
        is told."""
        return _Clients(self, runner, begin_sum or SumInTheClear)

    def next(self, state: PrivacyState, aggregate: CohortAggregate, round_number: int) -> MeanUpdate:
        """Turn the sum of a cohort's integers into a private mean.

        Among its metrics are those of `PrivateRounds`, and `wrapped_coordinates`. A round with too few clients is given
        up: it makes no mean.

        Raises:
          HorizonError: the last planned round is over.
        """
        _, after = self._count.next(state.noise, _nothing)
        state, total, goal = state._replace(noise=after), aggregate.delta, self.aggregation.report_goal
        assert isinstance(total, IntegerSum)
        counted = float(aggregate.clients - aggregate.dropped)
        enough, unit = total.clients >= self.least, 1 / (self.lattice.scale * goal)
        noise = self._expected_noise(total.clients) if total.noise is None else total.noise
        metrics = {
            "clipped_fraction": float(aggregate.clipped) / counted if counted else None,
            "clip_norm": self.aggregation.clip_norm,
            "noise_norm": noise * unit if enough else None,
            "signal_to_noise": total.signal / noise if enough and noise and total.signal is not None else None,
            "wrapped_coordinates": total.wrapped if enough else None,
        }
        if not enough:
            return MeanUpdate(None, state, metrics)
        mean = self.lattice.restored(self.lattice.centred(total.residues), total.rotation) / goal
        spread = math.sqrt(total.clients * (self.lattice.variance + _ROUNDING)) * unit
        return MeanUpdate(shaped(mean, self._like), state, metrics, divisor=goal, noise=spread)

    def _expected_noise(self, clients: int) -> float:
        return math.sqrt(clients * self.lattice.variance * self.lattice.dimension)


class _Clients:
    """A `CohortRunner` that trains one client after another by another runner, and adds up their integers."""

    def __init__(self, rounds: DistributedRounds, runner: CohortRunner, begin_sum: BeginSum):
        self._runner, self._begin_sum, self._least = runner, begin_sum, rounds.least
        self._lattice, self._secret = rounds.lattice, rounds.secret

    def announce(self, plan: RoundPlan) -> None:
        """Nothing is made ready: the other runner never sees this plan."""

    def run(self, params: Params, plan: RoundPlan, clip_norm: float | None = None, memory: Any = ()) -> CohortResult:
        lattice, aggregate = self._lattice, empty_aggregate({})
        signal, noise = np.zeros((2, lattice.dimension), np.int64)
        rotation = rotation_seed(plan.seed, plan.round_number)
        cohort_sum, steps, bytes_down = self._begin_sum(lattice, plan, self._least), 0, 0
        for place, client in enumerate(plan.clients.tolist()):
            alone = dataclasses.replace(plan, clients=plan.clients[place : place + 1])
            found = self._runner.run(params, alone, None, memory)
            one = jax.device_get(found.aggregate)
            # An update that is not finite is zeros by now. Its client's noise is in the sum all the same.
            random = rounding_random(plan.seed, plan.round_number, client)
            integers = lattice.rounded(_flat(one.delta), rotation, random)
            assert integers is not None, "squares of float32 numbers are finite in float64"
            drawn = lattice.drawn_noise(_SecretBytes(self._secret, plan.round_number, client))
            cohort_sum.add(integers + drawn)
            signal, noise = signal + integers, noise + drawn
            aggregate = add_aggregates(aggregate, self._counted(one))
            steps, bytes_down = steps + found.steps, bytes_down + found.bytes_down
        residues = cohort_sum.residues()
        wrapped = np.count_nonzero(lattice.centred(residues) != signal + noise)
        total = IntegerSum(residues, rotation, len(plan.clients), int(wrapped), _norm(signal), _norm(noise))
        return CohortResult(
            aggregate=aggregate._replace(delta=total),
            steps=steps,
            bytes_down=bytes_down,
            bytes_up=len(plan.clients) * math.ceil(lattice.dimension * lattice.bits / 8),
        )

    def _counted(self, one: CohortAggregate) -> CohortAggregate:
        """Count whether a client's update was clipped; its numbers are in the sum of integers."""
        return one._replace(delta={}, clipped=jnp.float32(one.update_norm > self._lattice.clip_norm))


class _SecretBytes:
    """SHAKE-256 of a run's secret, a round and a client: its noise, which the run may have to make again."""

    def __init__(self, secret: bytes, round_number: int, client: int):
        name = b"noise of a client" + round_number.to_bytes(8, "little") + client.to_bytes(8, "little")
        self._key, self._asked = hmac.digest(secret, name, "sha256"), 0

    def __call__(self, count: int) -> bytes:
        self._asked += 1
        return hashlib.shake_256(self._key + self._asked.to_bytes(8, "little")).digest(count)


def _nothing(terms: Any) -> Any:
    """Draw no noise of the server's."""
    return None


def _flat(tree: Params) -> NDArray[np.float64]:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree_util.tree_leaves(tree)]).astype(np.float64)


def _norm(integers: NDArray[np.int64]) -> float:
    return float(np.linalg.norm(integers.astype(np.float64)))
