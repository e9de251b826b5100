"""Where made-up sums take the place of training, what is released is counted, and a process can be killed.

Everything else is the product's: drivers, releases, ledgers, statements, folders, samplers, mechanisms, accounting.
"""

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import dp_accounting
import jinja2
import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant
from jax_privacy.matrix_factorization import toeplitz

from benchmarks.privacy.histories.made_up_disk import FileCheckpoints, noted_save, torn_write, with_moments
from benchmarks.privacy.histories.made_up_training import (
    MadeUpCohorts,
    MadeUpTrainer,
    counted_rounds,
    measured,
    named_batches,
    visible_noise,
)
from benchmarks.privacy.histories.recorder import Recorder
from fedlm.fl_core import round_loop
from fedlm.fl_core.client_algorithms.settings import ClientAlgorithmSettings
from fedlm.fl_core.clipping.methods import Clipping
from fedlm.fl_core.privacy import accounting, central_plan, composition, private_rounds, private_selection, releases
from fedlm.fl_core.privacy.mechanisms import blt, dense
from fedlm.fl_core.runs import driver, federated_training, initial_parameters, publishing, run_folder
from fedlm.fl_core.scores import ClientSums, Scores
from fedlm.models.losses import ExampleSums
from fedlm.simulations.experiments import experiment, preparation
from fedlm.simulations.pretraining import preparing
from fedlm.simulations.pretraining import run as pretraining_run


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
            functools.partial(counted_rounds, recorder, federated_training.run_rounds),
        )
        put(private_rounds, "noise_from", functools.partial(visible_noise, recorder))
        put(private_rounds.PrivateRounds, "next", measured(recorder, private_rounds.PrivateRounds.next))
        put(preparing, "Trainer", functools.partial(MadeUpTrainer, recorder))
        put(pretraining_run, "logical_batches", functools.partial(named_batches, recorder))
        put(releases, "fresh_secret", recorder.fresh_secret)
        put(pretraining_run, "scored_batches", lambda *arguments: [])
        put(pretraining_run, "evaluate", lambda *arguments: _SCORES)
        put(driver.RunFolder, "save", noted_save(recorder, driver.RunFolder.save))
        put(os, "fsync", lambda descriptor: recorder.moment())
        put(os, "pwrite", torn_write(recorder, os.pwrite))
        put(os, "replace", with_moments(recorder, os.replace))
        put(Path, "replace", with_moments(recorder, Path.replace))
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
