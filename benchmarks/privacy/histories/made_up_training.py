"""Training whose sums are made up: cohorts and batches that have nothing but marks of who is in them."""

import hashlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from benchmarks.privacy.histories.recorder import PUBLIC, Recorder, Round, at_risk
from benchmarks.privacy.histories.tally import WIDTH, Entry
from benchmarks.privacy.histories.toy import MARKS, marks
from fedlm.fl_core.aggregation import empty_aggregate
from fedlm.fl_core.exact_sums import grid_step, number_of_coordinates, on_grid
from fedlm.fl_core.privacy.participation import PoissonParticipation
from fedlm.fl_core.round_loop import CohortResult
from fedlm.fl_core.runs.checkpoints import parameters_digest
from fedlm.simulations.pretraining.trainer import BatchTotals, StepReport, TrainState

_RATE = 0.25
_TURNS = 100  # in which hardly a unit is drawn never whose part it is


class MadeUpCohorts:
    """A `CohortRunner` whose sums have nothing but marks of who is in them."""

    def __init__(self, recorder: Recorder, training: Any):
        self._recorder, self._training = recorder, training
        self._ids = list(training.clients.client_ids)
        recorder.people |= at_risk(self._ids)

    def announce(self, plan: Any) -> None:
        """See `CohortRunner`."""

    def run(self, params: Any, plan: Any, clip_norm: float | None = None, memory: Any = ()) -> CohortResult:
        """See `CohortRunner`."""
        names = [self._ids[index] for index in plan.clients]
        before = parameters_digest(params)
        signature = repr((before, sorted(names), plan.learning_rate, self._text()))
        made_up = marks(signature)
        enforced = self._training.work.rules.clip_norm if clip_norm is None else clip_norm
        self._recorder.round = Round(
            before,
            at_risk(names),
            at_risk(self._ids),
            1.0,
            enforced,
            made_up,
            hashlib.sha256(signature.encode()).hexdigest(),
        )
        delta = {"marks": jnp.asarray(made_up), "noise": jnp.zeros(WIDTH)}
        if self._training.work.rules.exact:
            delta = _to_grid(delta, jnp.float32(enforced))
        number = jnp.asarray(float(len(names)))
        aggregate = empty_aggregate({})._replace(delta=delta, weight=number, clients=number)
        return CohortResult(aggregate, len(names), len(names), len(names))

    def _text(self) -> int:
        return int(self._training.clients.num_examples.sum())


@jax.jit
def _to_grid(delta: Any, clip_norm: jax.Array) -> Any:
    return on_grid(delta, grid_step(clip_norm, number_of_coordinates(delta)), "toward_zero")


def counted_rounds(
    recorder: Recorder, real: Any, state: Any, rounds: range, runner: Any, sampler: Any, *others: Any
) -> Any:
    """Take the place of `run_rounds`: the same, and each round is in the tally."""
    participation = getattr(sampler, "participation", None)
    results, earlier = real(state, rounds, runner, sampler, *others), None
    while True:
        try:
            result = results.send(earlier)
        except StopIteration:
            return
        made = recorder.round
        assert made is not None
        probability, risk = 1.0, frozenset[str]()
        # Who knows the seed knows who takes part.
        if isinstance(participation, PoissonParticipation) and isinstance(sampler.seed, bytes):
            probability, risk = sampler.cohort_size / sampler.num_clients, made.at_risk
        entry = Entry(
            made.people,
            risk,
            made.noise,
            made.signature,
            made.secret,
            probability,
            made.count_noise,
            recorder.trial,
        )
        after = parameters_digest(result.state.params)
        recorder.tally.made(made.before, entry, after)
        recorder.shown[result.round_number] = after
        earlier = yield result


def visible_noise(recorder: Recorder, secret: bytes, like: Any) -> Callable[..., Any]:
    """Make noise of which each draw is a coordinate of its own, and pseudorandom elsewhere."""
    leaves, structure = jax.tree_util.tree_flatten(like)

    def draw(terms: Any) -> Any:
        drawn = []
        for leaf in leaves:
            total = np.zeros(leaf.shape)
            for coefficient, name in terms:
                if leaf.shape == (WIDTH,):
                    total[recorder.draw(secret, name)] += coefficient
                else:
                    total += coefficient * (
                        marks(secret, tuple(map(int, name)))[: total.size].reshape(leaf.shape) - 0.5
                    )
            with jax.enable_x64(True):
                drawn.append(jnp.asarray(total))
        return jax.tree_util.tree_unflatten(structure, drawn)

    draw.secret = secret  # type: ignore[attr-defined]
    return draw


def measured(recorder: Recorder, real: Any) -> Callable[..., Any]:
    """Make a `PrivateRounds.next` that notes the noise that was added."""

    def measure(self: Any, state: Any, aggregate: Any, round_number: int) -> Any:
        mean = real(self, state, aggregate, round_number)
        made, setting = recorder.round, self.aggregation
        assert made is not None
        assert made.clip_norm is not None
        noise = np.asarray(mean.delta["noise"], np.float64) * setting.report_goal / made.clip_norm
        adaptive = setting.adaptive_clipping
        recorder.round = made._replace(
            noise=tuple(np.round(noise, 5).tolist()) if self._draw.secret in recorder.secrets else None,
            count_noise=None if adaptive is None else 2 * adaptive.count_noise,
            secret=self._draw.secret.hex(),
        )
        return mean

    return measure


class _Batch(NamedTuple):
    step: int
    size: int
    units: Any
    indices: np.ndarray
    positions: int = 1
    num_chunks: int = 1

    def chunk(self, index: int) -> "_Batch":
        return self


def named_batches(
    recorder: Recorder, units: Any, batches: Any, first: int, steps: int, *others: Any
) -> Iterator[_Batch]:
    """Take the place of `logical_batches`."""
    recorder.people |= at_risk([units.stream.client_id(client) for client in range(units.stream.num_clients)])
    recorder.batches = batches
    for step in range(first, first + steps):
        indices = batches.draw(step)
        yield _Batch(step, len(indices), units, indices)


def unit_names(units: Any, indices: Any) -> list[Hashable]:
    """Name units: by the client, and for examples by their place among its examples, too."""
    stream = units.stream
    if units.kind == "user":
        return [stream.client_id(int(client)) for client in indices]
    firsts = stream.first_examples
    clients = np.searchsorted(firsts, np.asarray(indices), side="right") - 1
    return [
        (stream.client_id(int(client)), int(index - firsts[client]))
        for client, index in zip(clients, indices, strict=True)
    ]


def _private_units(names: list[Any]) -> frozenset[Hashable]:
    return frozenset(name for name in names if not str(name if isinstance(name, str) else name[0]).startswith(PUBLIC))


def _ever_drawn(batches: Any, part: int) -> np.ndarray:
    """Find out who may be in batches, by drawing very many."""
    found = [batches.draw(part + batches.cycle * turn) for turn in range(_TURNS)]
    return np.unique(np.concatenate(found))


class MadeUpTrainer:
    """A `Trainer` whose sums have nothing but marks of what is in them."""

    chunk_units = 1 << 20

    def __init__(
        self, recorder: Recorder, model: Any, optimizer: Any, rules: Any, sharding: Any, devices: Any, frozen: Any
    ):
        self._recorder, self._rules, self._secret = recorder, rules, b""

    def fresh(self, params: Any) -> TrainState:
        """See `Trainer`, and so of the others."""
        return TrainState(jax.tree_util.tree_map(np.asarray, params), ())

    def draw_noise(self, secret: bytes) -> Any:
        self._secret = secret
        return visible_noise(self._recorder, secret, {"marks": np.zeros(MARKS), "noise": np.zeros(WIDTH)})

    def place(self, state: TrainState) -> TrainState:
        return jax.tree_util.tree_map(np.asarray, state)

    whole = place

    def whole_params(self, state: TrainState) -> Any:
        return state.params

    def zero(self) -> Any:
        return None

    def add(self, params: Any, totals: Any, batch: _Batch) -> _Batch:
        return batch

    def step(self, state: TrainState, batch: _Batch, noise: Any) -> tuple[TrainState, StepReport]:
        recorder, rules, batches = self._recorder, self._rules, self._recorder.batches
        before = parameters_digest(state.params)
        names = unit_names(batch.units, batch.indices)
        signature = repr((before, sorted(map(str, names)), batch.units.count))
        secret, probability, everybody = "", 1.0, frozenset[Hashable]()
        added: dict[str, Any] = {"marks": np.zeros(MARKS), "noise": np.zeros(WIDTH)}
        if noise is not None:
            secret = self._secret.hex()
            added = {name: np.asarray(leaf) * rules.noise_multiplier for name, leaf in noise.items()}
            # Who knows the seed knows what is in a batch.
            if isinstance(batches.seed, bytes):
                count, most = batches.units.count, getattr(batches, "truncated_batch_size", None)
                parts = getattr(batches, "cycle", 1)
                probability = batches.batch_size * parts / count
                drawn = np.arange(count) if parts == 1 else _ever_drawn(batches, batch.step % parts)
                everybody = _private_units(unit_names(batches.units, drawn))
                if most is not None:
                    others = count - 1 if parts == 1 else -(-count // parts) - 1
                    probability *= float(scipy.stats.binom.cdf(most - 1, others, probability))
        entry = Entry(
            _private_units(names),
            everybody,
            tuple(np.round(added["noise"], 5).tolist()) if self._secret in recorder.secrets else None,
            hashlib.sha256(signature.encode()).hexdigest(),
            secret,
            probability,
        )
        sums = {"marks": marks(signature), "noise": np.zeros(WIDTH)}
        params = {
            name: (leaf - _RATE * (sums[name] + added[name])).astype(np.float32) for name, leaf in state.params.items()
        }
        recorder.tally.made(before, entry, parameters_digest(params))
        recorder.shown[batch.step] = parameters_digest(params)
        one = np.float32(1)
        totals = BatchTotals((), *[one] * (len(BatchTotals._fields) - 1))
        fields = {"norm_counts": np.ones(112, np.float32)}
        totals = totals._replace(**{name: value for name, value in fields.items() if name in BatchTotals._fields})
        return state._replace(params=params), StepReport(totals, one, one, np.bool_(True))
