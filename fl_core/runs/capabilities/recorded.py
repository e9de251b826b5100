"""What capabilities left in the folder of a run, for who opens, publishes or exports its model."""

from pathlib import Path
from typing import Any

from fedlm.fl_core.composed_settings import path_settings
from fedlm.fl_core.runs.capabilities.adapters import Adapters
from fedlm.fl_core.runs.capabilities.interface import Capability
from fedlm.fl_core.runs.capabilities.reattention import Reattention, ReattentionSettings
from fedlm.fl_core.runs.capabilities.warm_start_settings import WarmStartSettings

_KINDS: tuple[type[Capability], ...] = (Adapters, Reattention)
"""That leave anything."""
PATHS = tuple(name for kind in (WarmStartSettings, ReattentionSettings) for name in path_settings(kind))
"""Their settings that name files of whoever began the run."""


def whole_parameters(folder: Path, about: dict[str, Any], stored: Any) -> Any:
    """See `Capability.recorded_parameters`."""
    for kind in _KINDS:
        stored = kind.recorded_parameters(folder, about, stored)
    return stored


def recorded_constants(folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """See `Capability.recorded_constants`."""
    return {name: value for kind in _KINDS for name, value in kind.recorded_constants(folder, about).items()}


def released_files(folder: Path, about: dict[str, Any]) -> dict[str, str]:
    """See `Capability.released_files`."""
    return {name: text for kind in _KINDS for name, text in kind.released_files(folder, about).items()}


def check_exportable(folder: Path, about: dict[str, Any]) -> None:
    """See `Capability.check_exportable`."""
    for kind in _KINDS:
        kind.check_exportable(folder, about)
