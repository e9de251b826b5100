"""Runs whose clients add nothing, and of which each draw of noise is a coordinate of its own: who watches them can read
who was in which sum with which noise, and end their process at any write."""

import contextlib
import functools
import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_privacy.matrix_factorization import toeplitz

from fedlm.fl_core.exact_sums import grid_step, number_of_coordinates, on_grid
from fedlm.fl_core.privacy import private_rounds
from fedlm.fl_core.privacy.noise.noise_source import SECRET_BYTES
from fedlm.fl_core.privacy.private_cohorts import PoissonSampler
from fedlm.fl_core.privacy.record import releases
from fedlm.fl_core.rounds.aggregation import empty_aggregate
from fedlm.fl_core.rounds.round_loop import CohortResult
from fedlm.fl_core.runs.files.checkpoints import parameters_digest
from fedlm.fl_core.runs.run_folder import RunFolder
from fedlm.models.base import language_model
from fedlm.models.registry import ModelEntry
from fedlm.simulations.experiments import simulated_run
from tests.support.plain_runs import UnigramConfig
from tests.support.released_sums import WIDTH, Sum

MODEL = f"{__name__}:NOISE_ALONE"
MARKS = 4


def _noise_alone(name, config):
    def init(key):
        return {"noise": jnp.zeros(WIDTH), "marks": jax.random.normal(key, (MARKS,))}

    def apply(params, tokens):
        return jnp.zeros((*tokens.shape, config.vocabulary_size)) + params["marks"].sum()

    return language_model(name, config.vocabulary_size, init, apply)


NOISE_ALONE = ModelEntry(_noise_alone, UnigramConfig())


def marks(*parts):
    """Make up numbers that tell sums apart, float32 [MARKS], between 0 and 1."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return (np.frombuffer(digest, "<u4")[:MARKS] / 2**32).astype(np.float32)


class KilledError(BaseException):
    """The process is killed here."""


@dataclass
class Begun:
    """A run as its operator remembers it."""

    folder: Path
    settings: dict
    lied: bool = False  # whether they said anything false of its first parameters, or of theirs
    parent: "Begun | None" = None
    people: set[str] = field(default_factory=set)
    seen: set[Sum] = field(default_factory=set)  # that somebody may have seen something of
    budgets: set[Path] = field(default_factory=set)

    def has_begun(self):
        ledger = self.folder / "privacy" / "ledger.jsonl"
        return ledger.exists() and b"\n" in ledger.read_bytes()


class Watched:
    """What the seams see: the sums behind all parameters, and when the process is killed."""

    def __init__(self):
        self.behind, self.secrets, self.draws, self.moments = {}, set(), {}, None

    @contextlib.contextmanager
    def runs(self):
        """Let runs have no clients and noise that can be read, and end where they are killed."""
        with pytest.MonkeyPatch.context() as patch:
            for where, name, noting in (
                (RunFolder, "save", self.save),
                (private_rounds.PrivateRounds, "next", self.next),
                (simulated_run, "_sampler", self.sampler),
                (os, "pwrite", self.pwrite),
            ):
                patch.setattr(where, name, _noted(noting, getattr(where, name)))
            patch.setattr(simulated_run, "_engine", functools.partial(NoCohorts, self))
            patch.setattr(private_rounds, "noise_from", self.noise_from)
            patch.setattr(releases, "fresh_secret", self.fresh_secret)
            patch.setattr(os, "fsync", lambda descriptor: self.moment())
            # Which strategy is best takes seconds to find.
            patch.setattr(toeplitz, "optimize_banded_toeplitz", lambda rounds, bands: np.float32([0.8, 0.6])[:bands])
            yield

    def begin(self, begun, moments):
        self.begun, self.moments, self.first, self.trail = begun, moments, None, []

    def sampler(self, real, *arguments):
        found = real(*arguments)
        # Who knows the seed knows who takes part.
        self.secret_cohorts = isinstance(found, PoissonSampler) and isinstance(found.seed, bytes)
        return found

    def moment(self):
        if self.moments is not None:
            self.moments -= 1
            if self.moments < 0:
                self.moments = None
                raise KilledError

    def fresh_secret(self):
        self.secrets.add(secret := os.urandom(SECRET_BYTES))
        return secret

    def noise_from(self, secret, like):
        numbers = self.draws.setdefault(secret, {})

        def draw(terms):
            drawn = {(WIDTH,): np.zeros(WIDTH), (MARKS,): np.zeros(MARKS), (): np.zeros(())}
            for coefficient, name in terms:
                number = numbers.setdefault(tuple(map(int, name)), len(numbers))
                drawn[WIDTH,][number] += coefficient
                drawn[MARKS,] += coefficient * (marks(secret, number) - 0.5)
            with jax.enable_x64(True):
                return jax.tree_util.tree_map(lambda leaf: jnp.asarray(drawn[leaf.shape]), like)

        draw.secret = secret
        return draw

    def next(self, real, rounds, state, aggregate, number):
        mean, of_round = real(rounds, state, aggregate, number), self.trail.pop()
        noise = np.asarray(mean.delta["noise"], np.float64) * rounds.aggregation.report_goal / self.clip_norm
        adaptive = rounds.aggregation.adaptive_clipping
        self.trail.append(
            of_round._replace(
                secret=rounds._draw.secret.hex(),
                noise=tuple(np.round(noise, 5).tolist()) if rounds._draw.secret in self.secrets else None,
                count_noise=None if adaptive is None else 2 * adaptive.count_noise,
            )
        )
        return mean

    def save(self, real, folder, rounds, state, about):
        self.moment()
        digest = parameters_digest(getattr(state, "server", state).params)
        self.behind[digest] = self.behind.get(digest, set()) | self.behind.get(self.first, set()) | set(self.trail)
        # A part of the file may be on disk, where others see it, when the process is killed in writing it.
        self.begun.seen |= self.behind[digest]
        self.moment()
        real(folder, rounds, state, about)
        self.moment()

    def pwrite(self, real, descriptor, content, offset):
        try:
            self.moment()
        except KilledError:
            real(descriptor, content[: len(content) // 2], offset)
            raise
        return real(descriptor, content, offset)


class NoCohorts:
    """A `CohortRunner` whose clients add nothing."""

    def __init__(self, watched, training, *others):
        self.watched, self.work, self.clients = watched, training.work, training.clients
        self.probability = training.cohort_size / len(self.clients.client_ids)
        watched.begun.people |= set(self.clients.client_ids)

    def announce(self, plan):
        pass

    def run(self, params, plan, clip_norm=None, memory=()):
        watched, before = self.watched, parameters_digest(params)
        watched.first = before if watched.first is None else watched.first
        watched.clip_norm = clip_norm
        names = sorted(self.clients.client_ids[index] for index in plan.clients)
        everybody = frozenset(self.clients.client_ids) if watched.secret_cohorts else frozenset()
        watched.trail.append(Sum(frozenset(names), everybody, self.probability, repr((before, names))))
        delta = {"noise": jnp.zeros(WIDTH), "marks": jnp.asarray(marks(before, names) / MARKS)}
        number = jnp.asarray(float(len(names)))
        if self.work.rules.exact:
            step = grid_step(jnp.float32(watched.clip_norm), number_of_coordinates(delta))
            delta = on_grid(delta, step, "toward_zero")
        aggregate = empty_aggregate({})._replace(delta=delta, weight=number, clients=number)
        return CohortResult(aggregate, len(names), len(names), len(names))


def _noted(noting, real):
    return lambda *arguments: noting(real, *arguments)
