"""Auditing in one run: made-up clients of which half contribute, and how well one can tell which.

Each canary client holds one sequence of random tokens (the "secret" of Carlini et al. 2019), several times over. All
are training clients, who take part as often as others; a fair coin of its own decides whether a canary contributes, or
adds zero to every sum and to every count, as the neighbour of zero-out adjacency does. (Where each is sampled alone,
that is as good as being absent.) If the model, trained once, allows to guess those coins better than chance, its
epsilon has a lower bound (Steinke et al. 2023, "Privacy auditing with one (1) training run").
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from fedlm.fl_core.composed_settings import PartSettings, check_value_types
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.number_ranges import Count, CountOrZero
from fedlm.fl_core.randomness import host_rng
from fedlm.fl_core.rounds.scores import example_sums
from fedlm.fl_core.rounds.settings import TrainingSettings
from fedlm.fl_core.runs.capabilities.interface import Capability, Ended, Opening
from fedlm.models.base import Batch, Model, Params
from fedlm.models.special_tokens import OWN, SpecialTokens
from fedlm.simulations.data.federated_data import EVALUATION_BATCH, FederatedData
from fedlm.simulations.pretraining.inserted_canaries import random_sequences

SIGNIFICANCE = 0.05
"""The chance of a lower bound that is above the true epsilon."""


class Canaries(NamedTuple):
    """Made-up clients."""

    sequences: np.ndarray  # int32 [canaries, length + 1], each one's secret
    repeats: int  # how many times a canary client holds its own
    inside: np.ndarray  # bool [canaries], whether it contributes


@dataclass(frozen=True, kw_only=True)
class AuditSettings(PartSettings):
    """An audit of what a run gives away of its clients."""

    audit_canaries: CountOrZero = 0
    """Audit the run with this many made-up clients, N, half of whom contribute. The summary states how well the model
    tells which, as a lower bound on epsilon at delta. The bound is 0 unless N times delta is far below 0.05."""
    audit_repeats: Annotated[Count, OnlyWith("audit_canaries")] = 20
    """Examples of a canary client, all the same random sequence."""

    def __post_init__(self) -> None:
        check_value_types(self)
        if self.audit_canaries == 1:
            raise ConfigurationError(f"{setting('audit_canaries')} is 1, but must be at least 2, or 0 for no audit")

    @property
    def states_epsilon(self) -> bool:
        return self.audit_canaries > 0

    def check_run(self, run: Any) -> None:
        if not self.audit_canaries:
            return
        if run.chooses:
            raise ConfigurationError(
                f"{setting('audit_canaries')}: an audit is of one run, and does not fit a private selection; leave one "
                "of them out"
            )
        if run.privacy.noise_cohort_size is not None:
            raise ConfigurationError(
                f"{setting('audit_canaries')}: with a {setting('noise_cohort_size')} an audit would measure neither "
                "the planned deployment nor a promise; leave one of them out"
            )


class Audit(Capability):
    """A run with canaries among its clients, and what its model tells of them."""

    unsaid: ClassVar[Mapping[str, Any]] = {"audit": None}

    def __init__(self, canaries: Canaries):
        """Add canaries that were drawn."""
        self._canaries = canaries

    @classmethod
    def of(cls, opening: Opening) -> "Audit | None":
        settings, data = opening.part(AuditSettings), opening.data
        if not settings.audit_canaries:
            return None
        assert data is not None
        canaries = draw_canaries(
            settings.audit_canaries,
            settings.audit_repeats,
            opening.part(TrainingSettings).length,
            data.vocabulary_size,
            seed=opening.settings.seed,
            special_tokens=data.special_tokens,
        )
        return cls(canaries)

    def opened(self, opening: Opening) -> Opening:
        # It asks what the run has changed of its first parameters.
        return dataclasses.replace(opening, needs_first=True)

    def data(self, train: Any) -> "WithCanaries":
        return WithCanaries(train, self._canaries)

    def summary(self, ended: Ended) -> dict[str, Any]:
        return {"audit": audit(ended, self._canaries)}


def draw_canaries(
    number: int, repeats: int, length: int, vocabulary_size: int, *, seed: int, special_tokens: SpecialTokens = OWN
) -> Canaries:
    """Draw canaries, all independent, of `length` target tokens; special tokens do not occur in them."""
    rng = host_rng(seed, "canaries")
    sequences = random_sequences(rng, number, length, vocabulary_size, special_tokens=special_tokens)
    inside = rng.random(number) < 0.5
    if number and inside.all() | ~inside.any():
        raise ConfigurationError(f"all {number} canaries drew the same coin; take more of them, or another seed")
    return Canaries(sequences, repeats, inside)


class WithCanaries:
    """A federated data set with canaries added as its last clients; those outside have no examples."""

    def __init__(self, data: Any, canaries: Canaries):
        """Add all canaries to a `FederatedData` with `client_ids`."""
        self._data: FederatedData = data
        self._canaries = canaries
        self._ids = data.client_ids
        self.num_examples = np.append(data.num_examples, canaries.repeats * canaries.inside)

    @property
    def client_ids(self) -> list[str]:
        """The names of all clients, by index."""
        return [*self._ids, *(f"canary {number}" for number in range(len(self._canaries.inside)))]

    def sequences(self, client: int, rows: np.ndarray | None = None) -> np.ndarray:
        if client < len(self._ids):
            return self._data.sequences(client, rows)
        secret = self._canaries.sequences[client - len(self._ids)]
        return np.tile(secret, (int(self.num_examples[client]) if rows is None else len(rows), 1))


def audit(ended: Ended, canaries: Canaries) -> dict[str, Any]:
    """Guess from a model which canaries took part, and bound its epsilon from below. Returns `epsilon_lower_bound` at
    `confidence`, `auc` of the guesses, and counts of canaries."""
    # Loading the auditing library takes a while.
    from jax_privacy.auditing import CanaryScoreAuditor

    before = _losses(ended.model, ended.first(), canaries)
    gain = before - _losses(ended.model, ended.last(), canaries)
    gain = np.where(np.isfinite(gain), gain, np.nan_to_num(gain, nan=0.0, posinf=1e30, neginf=-1e30))
    inside, outside = gain[canaries.inside], gain[~canaries.inside]
    auditor = CanaryScoreAuditor(inside, outside)
    return {
        "epsilon_lower_bound": float(max(0.0, auditor.epsilon_one_run(SIGNIFICANCE, ended.delta))),
        "confidence": 1 - SIGNIFICANCE,
        "delta": ended.delta,
        "auc": _area_under_curve(inside, outside),
        "canaries": len(gain),
        "canaries_inside": int(canaries.inside.sum()),
        "examples_of_a_canary": canaries.repeats,
    }


def _area_under_curve(inside: np.ndarray, outside: np.ndarray) -> float:
    """The chance that one from inside scores above one from outside. (The auditor's own area is that of the convex
    hull, which lies above a half even for guesses by chance.)"""
    outside = np.sort(outside)
    below = np.searchsorted(outside, inside, "left") + np.searchsorted(outside, inside, "right")
    return float(np.mean(below) / (2 * len(outside)))


def _losses(model: Model, params: Params, canaries: Canaries) -> np.ndarray:
    return np.asarray(example_sums(model, params, _batches(canaries.sequences)).loss)[: len(canaries.sequences)]


def _batches(sequences: np.ndarray) -> Iterator[Batch]:
    for start in range(0, len(sequences), EVALUATION_BATCH):
        rows = sequences[start : start + EVALUATION_BATCH]
        missing = EVALUATION_BATCH - len(rows)
        weight = np.append(np.ones(len(rows), np.float32), np.zeros(missing, np.float32))
        yield Batch(np.pad(rows, ((0, missing), (0, 0))), weight)  # type: ignore[arg-type]
