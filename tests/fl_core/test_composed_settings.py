"""Records within records are flat for who writes them, and come back as they were."""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from fedlm.clients.fleet.population import Population
from fedlm.fl_core.composed_settings import (
    compose,
    default_settings,
    flat_settings,
    settings_as_json,
    value_types,
    with_changes,
)
from fedlm.fl_core.deployment.server.settings import Deployment
from fedlm.fl_core.errors import ConfigurationError
from fedlm.simulations.data.importing import ImportSettings
from fedlm.simulations.evaluation.memorization.measuring import MemorizationSettings
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
    with pytest.raises(ConfigurationError, match="no setting has the name deep; did you mean depth"):
        compose(Outer, path=Path("x"), deep=1, middle=Middle())
    with pytest.raises(ConfigurationError, match="no setting has the name kind"):
        compose(Outer, path=Path("x"), kind=1, middle=Middle())
    with pytest.raises(ConfigurationError, match="path: not given"):
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


NEEDED = {
    Experiment: {"model": "cifg_tiny", "data": Path("store")},
    Comparison: {"models": ("cifg_tiny",), "data": Path("store")},
    Pretraining: {"model": "cifg_tiny", "data": Path("store"), "steps": 5, "batch_size": 4, "epsilon": 8.0},
    Deployment: {"model": "cifg_tiny"},
    ImportSettings: {},
    MemorizationSettings: {},
    Population: {},
}


@pytest.mark.parametrize("kind", NEEDED, ids=lambda kind: kind.__name__)
def test_every_setting_refuses_what_is_of_no_type_of_its_own(kind):
    settings = compose(kind, **NEEDED[kind])
    for name in value_types(kind):
        with pytest.raises(ConfigurationError, match=rf"^{name} is {{'a': 1}}, but (must|each must) be "):
            with_changes(settings, **{name: {"a": 1}})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rounds", "5", "rounds is '5', but must be a whole number"),
        ("rounds", True, "rounds is True, but must be a whole number"),
        ("rounds", None, "rounds is None, but must be a whole number"),
        ("client_learning_rate", "0.1", "client_learning_rate is '0.1', but must be a number"),
        ("model", 3, "model is 3, but must be a string"),
        ("upload_rotation", 1, "upload_rotation is 1, but must be true or false"),
        ("cohort_sampler", "all", "cohort_sampler is 'all', but must be one of uniform, "),
    ],
)
def test_a_setting_of_a_wrong_type_is_named(name, value, message):
    with pytest.raises(ConfigurationError, match=message):
        compose(Experiment, **NEEDED[Experiment] | {name: value})
    with pytest.raises(ConfigurationError, match=r"training is .*, but must be TrainingSettings"):
        Experiment(**NEEDED[Experiment], training={"length": 3})


def test_numbers_of_numpy_and_texts_of_paths_are_taken():
    of_numpy = {
        "rounds": np.int64(5),
        "client_learning_rate": np.float32(0.5),
        "upload_rotation": np.bool_(True),
    }
    found = compose(Experiment, model="cifg_tiny", data="store", **of_numpy)
    plain = compose(Experiment, **NEEDED[Experiment], **{name: one.item() for name, one in of_numpy.items()})
    assert json.dumps(settings_as_json(found)) == json.dumps(settings_as_json(plain))
    assert found == plain
    given = {"models": ["cifg_tiny"], "data": "store", "seeds": (np.int32(3),), "client_learning_rates": (5,)}
    comparison = compose(Comparison, **given)
    assert (repr(comparison.seeds), repr(comparison.client_learning_rates)) == ("(3,)", "(5,)")
