"""Records within records are flat for who writes them, and come back as they were."""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fedlm.fl_core.composed_settings import (
    compose,
    default_settings,
    flat_settings,
    settings_as_json,
    with_changes,
)
from fedlm.fl_core.deployment.server.settings import Deployment
from fedlm.fl_core.errors import ConfigurationError
from fedlm.simulations.experiments.configuration import Comparison, Experiment
from fedlm.simulations.pretraining.settings import Pretraining


@dataclass(frozen=True, kw_only=True)
class Inner:
    depth: int = 2

    def __post_init__(self):
        if self.depth < 0:
            raise ConfigurationError(f"depth is {self.depth}")


@dataclass(frozen=True, kw_only=True)
class Middle:
    width: float = 0.5
    inner: Inner = field(default_factory=Inner)


@dataclass(frozen=True, kw_only=True)
class Outer:
    path: Path
    levels: tuple[float, ...] = ()
    middle: Middle = field(default_factory=Middle)


def test_values_reach_the_records_that_have_them():
    made = compose(Outer, path=Path("x"), depth=5)
    assert made == Outer(path=Path("x"), middle=Middle(inner=Inner(depth=5)))
    assert flat_settings(made) == {"path": Path("x"), "levels": (), "width": 0.5, "depth": 5}
    assert compose(Outer, **flat_settings(made)) == made
    assert with_changes(made, width=1.0, path=Path("y")) == compose(Outer, path=Path("y"), depth=5, width=1.0)
    assert default_settings(Outer) == {"levels": (), "width": 0.5, "depth": 2}


def test_json_is_flat_and_has_no_number_that_json_lacks():
    record = settings_as_json(compose(Outer, path=Path("x"), levels=(1.0, math.inf)))
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record == {"path": "x", "levels": [1.0, "inf"], "width": 0.5, "depth": 2}


def test_what_is_unknown_missing_or_out_of_range_is_refused():
    with pytest.raises(TypeError, match="Outer has no setting deep, middle"):
        compose(Outer, path=Path("x"), deep=1, middle=Middle())
    with pytest.raises(TypeError, match="path"):
        compose(Outer, depth=1)
    with pytest.raises(ConfigurationError, match="depth is -1"):
        compose(Outer, path=Path("x"), depth=-1)


@pytest.mark.parametrize("kind", [Experiment, Comparison, Deployment, Pretraining])
def test_no_two_settings_of_a_run_have_the_same_name(kind):
    """Flat settings could not tell them apart."""

    def names(record):
        for one in dataclasses.fields(record):
            inner = one.default_factory if dataclasses.is_dataclass(one.default_factory) else None
            yield from names(inner) if inner else [one.name]

    found = list(names(kind))
    assert len(found) == len(set(found)) > 10
