"""Files of laws: what was fitted to measurements, as one JSON document; those that come with the package."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.errors import ConfigurationError, DataError, setting
from fedlm.fl_core.json_text import json_text
from fedlm.simulations.laws.forms.fitted_form import FittedForm
from fedlm.simulations.laws.surface.loss_surface import Interpolation, LossSurface, Method

KIND = "fedlm scaling laws"
VERSION = 1
_FIT_AGAIN = "Fit again with `fedlm laws fit`."
_SHAPES = {
    **{"parameters": "M", "steps": "T", "noise_batch_ratios": "S", "loss": "MTS", "noiseless": "MT"},
    **{"learning_rates": "MTS", "noiseless_learning_rates": "MT", "curves": "MRC"},
    **{"draws": "DMTS", "noiseless_draws": "DMT"},
}
_ASCENDING = ("parameters", "steps", "noise_batch_ratios")
_POSITIVE = ("loss", "noiseless", "learning_rates", "noiseless_learning_rates", "draws", "noiseless_draws")
_MOST_LOSS = 1e100  # nats per predicted token; of larger ones sums overflow


@dataclass(frozen=True)
class Laws:
    """What was fitted to the trainings of a grid.

    Attributes:
      surface: the loss by parameters, steps and noise; None where none could be fitted.
      forms: parametric laws, by name.
      held_out: errors of the surface on what a fit had not seen, by how it was chosen; see `held_out.HeldOutError`.
      source: which measurements were fitted, and how.
      task: what was trained, settings by name; empty where it is not known.
    """

    surface: LossSurface | None
    forms: Mapping[str, FittedForm] = field(default_factory=dict)
    held_out: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)


def write_laws(laws: Laws, path: Path) -> None:
    """Write laws as JSON, beside the file's place, and rename it. Raises DiskError where that fails."""
    document = {
        "kind": KIND,
        "version": VERSION,
        "source": laws.source,
        "task": laws.task,
        "held_out": laws.held_out,
        "forms": {name: form.to_json() for name, form in laws.forms.items()},
        "surface": None if laws.surface is None else _surface_fields(laws.surface),
    }
    write_atomically(path, json_text(document, default=str) + "\n")


def read_laws(path: Path) -> Laws:
    """Read what `write_laws` wrote, bit for bit.

    Raises:
      DataError: the file is missing, damaged, of another kind or of a later version; one line.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}), expected a file of `fedlm laws fit`.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is damaged, not JSON ({str(error).splitlines()[0]}). {_FIT_AGAIN}") from error
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise DataError(f"{path}: is no file of laws, expected one that `fedlm laws fit` made.")
    if type(document.get("version")) is not int or document["version"] != VERSION:
        raise DataError(f"{path}: is of version {document.get('version')!r}, expected {VERSION}. {_FIT_AGAIN}")
    try:
        return Laws(
            surface=None if document["surface"] is None else _surface(document["surface"]),
            forms={name: FittedForm.from_json(name, fields) for name, fields in document["forms"].items()},
            held_out={name: dict(errors) for name, errors in document["held_out"].items()},
            source=dict(document["source"]),
            task=dict(document["task"]),
        )
    except KeyError as error:
        raise DataError(f"{path}: is damaged, it has no {error}. {_FIT_AGAIN}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{path}: is damaged, {str(error).splitlines()[0]}. {_FIT_AGAIN}") from error


def _surface_fields(surface: LossSurface) -> dict[str, Any]:
    fields = {part.name: getattr(surface, part.name) for part in dataclasses.fields(surface)}
    for name in _SHAPES:
        values = fields[name].astype(object)
        values[np.isnan(fields[name])] = None  # JSON has no NaN
        fields[name] = values.tolist()
    return fields


def _surface(fields: dict[str, Any]) -> LossSurface:
    """Make a surface of its fields. Raises KeyError and ValueError where they do not fit together."""
    sizes = {
        "M": len(fields["models"]),
        "T": len(fields["steps"]),
        "S": len(fields["noise_batch_ratios"]),
        "R": len(fields["noise_batch_ratios"]) + 1,
        "C": 3,
        "D": len(fields["draws"]),
    }
    arrays: dict[str, Any] = {}
    for name, letters in _SHAPES.items():
        expected = tuple(sizes[letter] for letter in letters)
        found = np.array(fields[name], np.float64)
        # No draws, and no ratios, leave an empty list of which the shape is not known.
        if found.shape != expected and not (found.size == 0 and 0 in expected):
            raise ValueError(f"surface.{name} has the shape {found.shape}, expected {expected}")
        arrays[name] = found.reshape(expected)
    for name in _ASCENDING:
        if not (np.isfinite(arrays[name]).all() and (np.diff(arrays[name], prepend=0.0) > 0).all()):
            raise ValueError(f"surface.{name} does not ascend from above 0")
    for name in _POSITIVE:
        known = arrays[name][~np.isnan(arrays[name])]
        if not ((known > 0) & (known < _MOST_LOSS)).all():
            raise ValueError(f"surface.{name} has values that are not above 0 and below {_MOST_LOSS:g}")
    rest = {
        part.name: fields[part.name] for part in dataclasses.fields(LossSurface) if part.name not in (*_SHAPES, "notes")
    }
    _check_rest(rest)
    rest["models"] = tuple(rest["models"])
    return LossSurface(**rest, **arrays, notes=tuple(fields["notes"]))


def _check_rest(rest: Mapping[str, Any]) -> None:
    """Refuse what is no description of a surface. Raises ValueError."""
    for name, kinds in (("batch_size", (int,)), ("length", (int,)), ("measured_steps", (int, float))):
        value = rest[name]
        if type(value) not in kinds or not 1 <= value < math.inf:
            raise ValueError(f"surface.{name} is {value!r}, expected a number of at least 1")
    for name, known in (("method", get_args(Method)), ("interpolation", get_args(Interpolation))):
        if rest[name] not in known:
            raise ValueError(f"surface.{name} is {rest[name]!r}, expected one of {', '.join(known)}")
    models = rest["models"]
    if not (
        isinstance(models, list) and all(isinstance(one, str) for one in models) and len(set(models)) == len(models)
    ):
        raise ValueError("surface.models is no list of different names")


SHIPPED_FILE = Path(__file__).parent / "shipped_laws.json"
"""Made by `python -m benchmarks.laws.ship`, where a version comes with one."""
ABOUT = "about"
"""Under this name the source of shipped laws has a sentence: what was measured, on what, and what they are good for."""


def shipped_laws() -> Laws:
    """Read the laws that come with the package.

    Raises:
      ConfigurationError: this version comes with none.
    """
    if not SHIPPED_FILE.exists():
        raise ConfigurationError(
            "this version comes with no laws to plan by; measure a grid with `fedlm laws run`, fit it with `fedlm laws "
            f"fit`, and give {setting('laws')} FILE"
        )
    return read_laws(SHIPPED_FILE)
