"""Where made-up sums take the place of training, what is released is counted, and a process can be killed.

Everything else is the product's: drivers, releases, ledgers, statements, folders, samplers, mechanisms, accounting.
"""

import contextlib
import functools
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import dp_accounting
import jax
import jax.numpy as jnp
import jinja2
import numpy as np
import scipy.stats
from dp_accounting.rdp import rdp_privacy_accountant
from jax_privacy.matrix_factorization import toeplitz

from benchmarks.privacy.histories.tally import WIDTH, Entry, Tally, Trial
from benchmarks.privacy.histories.toy import MARKS, marks
from fedlm.fl_core import round_loop
from fedlm.fl_core.aggregation import empty_aggregate
from fedlm.fl_core.client_algorithms.settings import ClientAlgorithmSettings
from fedlm.fl_core.clipping.methods import Clipping
from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.exact_sums import grid_step, number_of_coordinates, on_grid
from fedlm.fl_core.privacy import accounting, central_plan, composition, private_rounds, private_selection, releases
from fedlm.fl_core.privacy.mechanisms import blt, dense
from fedlm.fl_core.privacy.noise_source import SECRET_BYTES
from fedlm.fl_core.privacy.participation import PoissonParticipation
from fedlm.fl_core.round_loop import CohortResult
from fedlm.fl_core.runs import driver, federated_training, initial_parameters, publishing, run_folder
from fedlm.fl_core.runs.checkpoints import parameters_digest
from fedlm.fl_core.scores import ClientSums, Scores
from fedlm.models.losses import ExampleSums
from fedlm.simulations.experiments import experiment, preparation
from fedlm.simulations.pretraining import preparing
from fedlm.simulations.pretraining import run as pretraining_run
from fedlm.simulations.pretraining.trainer import BatchTotals, StepReport, TrainState

PUBLIC = "public"
"""With which the names of clients begin whose text is public."""
_RATE = 0.25
_TURNS = 100  # in which hardly a unit is drawn never whose part it is


class Killed(BaseException):
    """The process is killed here."""


class Recorder:
    """What the seams of one history know.

    Attributes:
      tally: of all sums.
      seen: what anybody may have seen of the run that goes on; the history sets it before each command.
      people: the training clients of the run that goes on.
      moments: that are left until the process is killed; None for never.
      saves: checkpoints that are left until it is killed in writing one; None for never.
      trial: of a private selection, that the run is; None of any other.
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self.seen: set[Entry] = set()
        self.people: set[str] = set()
        self.moments: int | None = None
        self.saves: int | None = None
        self.trial: Trial | None = None
        self.secrets: set[bytes] = set()
        self.batches: Any = None
        self._draws: dict[bytes, dict[tuple[int, ...], int]] = {}
        self.round: _Round | None = None
        self.shown: dict[int, str] = {}

    def moment(self) -> None:
        """A moment at which a process may be killed."""
        if self.moments is not None:
            self.moments -= 1
            if self.moments < 0:
                self.moments = None
                raise Killed

    def moment_of_saving(self) -> bool:
        """Say whether the process is killed in writing this checkpoint."""
        if self.saves is not None:
            self.saves -= 1
            if self.saves < 0:
                self.saves = None
                return True
        return False

    def fresh_secret(self) -> bytes:
        """Take a secret from the operating system's entropy, in place of the product."""
        secret = os.urandom(SECRET_BYTES)
        self.secrets.add(secret)
        return secret

    def see(self, params: Any) -> None:
        """Count what parameters are made of as released."""
        self.seen |= self.tally.behind.get(parameters_digest(params), frozenset())

    def draw(self, secret: bytes, name: tuple[int, ...]) -> int:
        """Number a draw of a secret."""
        of_secret = self._draws.setdefault(secret, {})
        return of_secret.setdefault(tuple(map(int, name)), len(of_secret))


class _Round(NamedTuple):
    before: str
    people: frozenset[str]
    at_risk: frozenset[str]
    probability: float
    clip_norm: float | None
    marks: np.ndarray
    signature: str
    noise: tuple[float, ...] | None = None
    count_noise: float | None = None
    secret: str = ""


def at_risk(names: list[str]) -> frozenset[str]:
    """Name those whose privacy is at stake."""
    return frozenset(name for name in names if not name.startswith(PUBLIC))


@contextlib.contextmanager
def seams(recorder: Recorder, stored_by_orbax: bool = False) -> Iterator[None]:
    """Put the seams in, for one history."""
    with contextlib.ExitStack() as stack:

        def put(where: Any, name: str, what: Any) -> None:
            stack.enter_context(patch.object(where, name, what))

        if not stored_by_orbax:
            for module in (run_folder, initial_parameters, publishing):
                put(module, "Checkpoints", functools.partial(FileCheckpoints, recorder))
        # Whether an algorithm or a model can be traced is no question of these histories.
        for module, names in _TRACED.items():
            for name in names:
                put(module, name, lambda *arguments: None)
        put(ClientAlgorithmSettings, "check_privacy", lambda self, is_private: None)
        # Nor is it which strategy is best, which takes seconds to find.
        put(toeplitz, "optimize_banded_toeplitz", lambda rounds, bands: _falling(bands))
        put(blt, "optimize", lambda rounds, participation: (0.9, 0.4, 0.3, 0.2))
        put(dense, "_optimize", _falling_rows)
        put(central_plan, "_strategy", lambda steps, bands: tuple(map(float, _falling(bands))))
        put(preparing, "_clipping", _clipping)
        put(publishing, "Environment", _pages)
        put(experiment, "_engine", lambda training, frozen: MadeUpCohorts(recorder, training))
        put(experiment, "device_batches", lambda *arguments: [])
        put(experiment, "evaluation_owners", lambda *arguments: [])
        put(experiment, "evaluate", lambda *arguments: _SCORES)
        put(experiment, "evaluate_clients", lambda *arguments: (_SCORES, _CLIENTS))
        put(
            federated_training,
            "run_rounds",
            functools.partial(_counted_rounds, recorder, federated_training.run_rounds),
        )
        put(private_rounds, "noise_from", functools.partial(_visible_noise, recorder))
        put(private_rounds.PrivateRounds, "next", _measured(recorder, private_rounds.PrivateRounds.next))
        put(preparing, "Trainer", functools.partial(MadeUpTrainer, recorder))
        put(pretraining_run, "logical_batches", functools.partial(_named_batches, recorder))
        put(releases, "fresh_secret", recorder.fresh_secret)
        put(pretraining_run, "scored_batches", lambda *arguments: [])
        put(pretraining_run, "evaluate", lambda *arguments: _SCORES)
        put(driver.RunFolder, "save", _noted_save(recorder, driver.RunFolder.save))
        put(os, "fsync", lambda descriptor: recorder.moment())
        put(os, "pwrite", _torn_write(recorder, os.pwrite))
        put(os, "replace", _with_moments(recorder, os.replace))
        put(Path, "replace", _with_moments(recorder, Path.replace))
        yield


_TRACED: dict[Any, tuple[str, ...]] = {
    preparation: ("check_usable", "check_private"),
    round_loop: ("check_usable",),
    federated_training: ("check_private",),
}


def _falling(bands: int) -> np.ndarray:
    column = np.float32(0.6) ** np.arange(bands, dtype=np.float32)
    return column / np.linalg.norm(column)


def _falling_rows(rounds: int, bands: int) -> tuple[float, ...]:
    near = [range(max(0, row - bands + 1), row + 1) for row in range(rounds)]
    return tuple(0.6 ** (row - place) for row, places in enumerate(near) for place in places)


def _clipping(settings: Any, model: Any, adapters: Any) -> tuple[Clipping | None, str | None]:
    private = settings.privacy != "none"
    return Clipping("vmap", settings.clip_norm, settings.clip_function) if private else None, None


@functools.cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(Path(publishing.__file__).parent)
    return jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def _pages(**options: Any) -> jinja2.Environment:
    return _environment()


def remember_epsilons() -> contextlib.AbstractContextManager[Any]:
    """Let the product's accountant forget nothing, for the histories have much in common, and leave out the epsilon of
    Renyi accounting, which statements show for comparison, and which takes half a second."""
    stack = contextlib.ExitStack()
    stack.enter_context(patch.object(accounting, "_epsilon_by_rdp", lambda *arguments: None))
    real = dp_accounting.get_epsilon_gaussian
    stack.enter_context(patch.object(dp_accounting, "get_epsilon_gaussian", functools.cache(real)))
    for module, name in (
        (composition, "_epsilon_above"),
        (composition, "_epsilon_bounds"),
        (private_selection, "_by_divergences"),
    ):
        known = getattr(module, name, None)
        if hasattr(known, "__wrapped__"):
            stack.enter_context(patch.object(module, name, functools.cache(known.__wrapped__)))
    by_order = functools.cache(rdp_privacy_accountant._compute_log_a)
    stack.enter_context(patch.object(rdp_privacy_accountant, "_compute_log_a", by_order))
    stretch = dense.Dense.stretch_squared
    by_strategy = functools.cache(
        lambda coefficients, of, *others: stretch(dense.MECHANISM, _Strategy(coefficients, of), *others)  # type: ignore[arg-type]
    )
    stack.enter_context(
        patch.object(
            dense.Dense,
            "stretch_squared",
            lambda self, plan, *others: by_strategy(plan.coefficients, plan.rounds, *others),
        )
    )
    return stack


class _Strategy(NamedTuple):
    coefficients: tuple[float, ...]
    rounds: int


_SCORES = Scores(1.0, 2.7, 0.5, 0.5)
_CLIENTS = ClientSums(
    np.zeros(1, np.int64), np.ones(1, np.int64), ExampleSums(*[np.ones(1)] * len(ExampleSums._fields))
)


# Federated rounds


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
        self._recorder.round = _Round(
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


def _counted_rounds(
    recorder: Recorder, real: Any, state: Any, rounds: range, runner: Any, sampler: Any, *others: Any
) -> Any:
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


def _visible_noise(recorder: Recorder, secret: bytes, like: Any) -> Callable[..., Any]:
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


def _measured(recorder: Recorder, real: Any) -> Callable[..., Any]:
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


# Central training


class _Batch(NamedTuple):
    step: int
    size: int
    units: Any
    indices: np.ndarray
    positions: int = 1
    num_chunks: int = 1

    def chunk(self, index: int) -> "_Batch":
        return self


def _named_batches(
    recorder: Recorder, units: Any, batches: Any, first: int, steps: int, *others: Any
) -> Iterator[_Batch]:
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
        return _visible_noise(self._recorder, secret, {"marks": np.zeros(MARKS), "noise": np.zeros(WIDTH)})

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


# The disk


def _noted_save(recorder: Recorder, real: Any) -> Callable[..., Any]:
    def save(self: Any, rounds: int, state: Any, about: dict[str, Any]) -> None:
        recorder.moment()
        # A part of the file may be on disk, where others see it, when the process is killed in writing it.
        recorder.see(getattr(state, "server", state).params)
        if recorder.moment_of_saving():
            raise Killed
        real(self, rounds, state, about)
        recorder.moment()

    return save


def _torn_write(recorder: Recorder, real: Any) -> Callable[..., int]:
    def pwrite(descriptor: int, content: bytes, offset: int) -> int:
        try:
            recorder.moment()
        except Killed:
            real(descriptor, content[: len(content) // 2], offset)
            raise
        return real(descriptor, content, offset)

    return pwrite


def _with_moments(recorder: Recorder, real: Any) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        recorder.moment()
        result = real(*arguments, **options)
        recorder.moment()
        return result

    return call


class FileCheckpoints:
    """What `Checkpoints` does, without orbax, which takes a hundred times as long."""

    def __init__(self, recorder: Recorder, directory: Path, keep: int = 2):
        self._recorder, self._directory, self._keep = recorder, directory, keep
        directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "FileCheckpoints":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def all_rounds(self) -> list[int]:
        return sorted(int(path.name) for path in self._directory.iterdir() if path.name.isdecimal())

    def latest_round(self) -> int:
        return max(self.all_rounds(), default=0)

    def check_room(self, state: Any) -> None:
        pass

    def save(self, rounds: int, state: Any, about: dict[str, Any]) -> None:
        if rounds in self.all_rounds():
            return
        made = self._directory / f"{rounds}.unfinished"
        shutil.rmtree(made, ignore_errors=True)
        (made / "about").mkdir(parents=True)
        (made / "about" / "metadata").write_text(json.dumps(about))
        with (made / "state.npy").open("wb") as file:
            np.save(file, np.array([_as_saved(state)], object), allow_pickle=True)
        os.rename(made, self._directory / str(rounds))
        for old in self.all_rounds()[: -self._keep]:
            shutil.rmtree(self._directory / str(old))

    def restore_about(self, rounds: int) -> dict[str, Any]:
        return json.loads((self._directory / str(rounds) / "about" / "metadata").read_text())

    def restore_arrays(self, rounds: int) -> Any:
        return np.load(self._directory / str(rounds) / "state.npy", allow_pickle=True)[0]

    def restore_state(self, rounds: int, like: Any) -> Any:
        try:
            return _as_like(like, self.restore_arrays(rounds))
        except (KeyError, IndexError, TypeError) as error:
            raise CheckpointError(
                f"{self._directory / str(rounds)}: this checkpoint cannot be read ({error})"
            ) from error


def _as_saved(tree: Any) -> Any:
    if hasattr(tree, "_asdict"):
        return {name: _as_saved(part) for name, part in tree._asdict().items()}
    if isinstance(tree, dict):
        return {name: _as_saved(part) for name, part in tree.items()}
    if isinstance(tree, list | tuple):
        return [_as_saved(part) for part in tree]
    return None if tree is None else np.asarray(tree)


def _as_like(like: Any, saved: Any) -> Any:
    if hasattr(like, "_asdict"):
        return type(like)(**{name: _as_like(part, saved[name]) for name, part in like._asdict().items()})
    if isinstance(like, dict):
        return {name: _as_like(part, saved[name]) for name, part in like.items()}
    if isinstance(like, list | tuple):
        return type(like)(_as_like(part, saved[place]) for place, part in enumerate(like))
    return saved


def epsilon_at_least(printed: float | None, least: float) -> bool:
    """Say whether a printed epsilon, None for an infinite one, is at least the tally's, but for rounding."""
    return printed is None or printed >= least * (1 - 2e-3) - 1e-4 or math.isinf(printed)
