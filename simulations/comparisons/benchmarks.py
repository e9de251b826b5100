"""The field's benchmarks by name: settings as published, with what was published of them.

The records are in `benchmarks.toml`. On other text than the published one, and scaled, a result is no repetition; the
report says what is different.
"""

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from fedlm.fl_core.composed_settings import flat_settings, with_changes
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.simulations.experiments.configuration import Comparison

_BY_SCALE = ("rounds", "cohort_size", "evaluate_every", "checkpoint_every", "min_separation")
_BY_SCALE_WHERE_GIVEN = ("server_warmup_rounds", "tree_restart_every", "report_goal")


class Target(NamedTuple):
    """What was published of a model."""

    model: str  # as the settings name it
    score: str  # a field of `Scores`
    value: float
    of: str  # what it is, in words
    read: str  # where it was read; `recalled` where nobody could


class Benchmark(NamedTuple):
    """A published setting."""

    about: str
    data: str  # that it was published for
    source: str  # of the settings
    differs: tuple[str, ...]  # what fedlm does otherwise
    settings: Mapping[str, Any]  # of a comparison, all but its data
    targets: tuple[Target, ...]


@cache
def benchmarks() -> dict[str, Benchmark]:
    """Read all records, by name."""
    records = tomllib.loads(files(__package__).joinpath("benchmarks.toml").read_text("utf-8"))
    return {name: _benchmark(name, _whole(name, records)) for name in records}


def benchmark_presets() -> dict[str, dict[str, Any]]:
    """Make the presets of `fedlm compare`."""
    return {name: dict(found.settings) for name, found in benchmarks().items()}


def _whole(name: str, records: Mapping[str, Any]) -> dict[str, Any]:
    record = dict(records[name])
    if "like" not in record:
        return record
    first = _whole(record.pop("like"), records)
    # What was published of another setting was not published of this.
    return first | {"targets": []} | record | {"settings": first["settings"] | record["settings"]}


def _benchmark(name: str, record: dict[str, Any]) -> Benchmark:
    settings = {key: value for key, value in record.pop("settings").items() if value != "none"}
    first = {"model": settings["models"][0]}
    targets = tuple(Target(**first | one) for one in record.pop("targets", ()))
    return Benchmark(
        **record | {"differs": tuple(record["differs"])}, settings={**settings, "benchmark": name}, targets=targets
    )


def benchmark_of(comparison: Comparison) -> Benchmark | None:
    """Find the published setting that a comparison follows; None where it follows none.

    Raises:
      ConfigurationError: there is none of that name.
    """
    if comparison.benchmark is None:
        return None
    if comparison.benchmark not in benchmarks():
        raise ConfigurationError(
            f"{setting('benchmark')} is {comparison.benchmark!r}, but must be one of {', '.join(benchmarks())}"
        )
    return benchmarks()[comparison.benchmark]


def scaled(comparison: Comparison, scale: float) -> Comparison:
    """Make rounds, and clients a round, fewer by a factor.

    Rounds between evaluations, between two of a client and of a warm-up are scaled too, so that a client takes part as
    often. The noise on a mean stays what it was: it is that of the whole cohort, as if that took part, and the run
    promises nothing.
    """
    if scale == 1:
        return comparison
    values = flat_settings(comparison)
    names = [*_BY_SCALE, *(name for name in _BY_SCALE_WHERE_GIVEN if values.get(name))]
    changes: dict[str, Any] = {name: max(1, round(values[name] * scale)) for name in names}
    private = any(privacy.is_private for privacy in comparison.compared_privacy())
    if private and changes["cohort_size"] < values["cohort_size"]:
        changes["noise_cohort_size"] = values["noise_cohort_size"] or values["cohort_size"]
    return with_changes(comparison, **changes)


def changed_settings(comparison: Comparison, found: Benchmark) -> list[tuple[str, Any, Any]]:
    """List settings that are not as published: name, what was published, what is there."""
    values = flat_settings(comparison)
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return [(name, value, plain[name]) for name, value in found.settings.items() if plain[name] != value]


def what_scaling_changes(changed: Sequence[tuple[str, Any, Any]]) -> list[str]:
    """Say what fewer rounds and clients a round, or more, do to a result."""
    ratios = {name: there / published for name, published, there in changed if name in ("rounds", "cohort_size")}
    said = []
    if (ratio := ratios.get("rounds", 1)) < 1:
        said.append(f"{ratio:.3g} of the rounds: training ends early, so that scores are below the published ones")
    if (ratio := ratios.get("cohort_size", 1)) < 1:
        said.append(
            f"{ratio:.3g} of the clients a round: a mean update varies more, as the root of {1 / ratio:.3g}, and the "
            "best learning rates may be others"
        )
    if any(name == "noise_cohort_size" for name, _, _ in changed):
        said.append("the noise on a mean is that of the published cohort, as if it took part: NOT PRIVATE")
    return said
