"""What sub-commands share in reading their options."""

import dataclasses
import os
import sys
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from fedlm.fl_core.errors import ConfigurationError

_Settings = TypeVar("_Settings")


def add_configuration(argv: list[str], command: type) -> list[str]:
    """Replace `--config FILE` by the options that the file holds, so that later ones on the line win.

    Args:
      argv: the options given.
      command: the dataclass that they will become.

    Returns:
      The options of the file, if one is named, then the others.

    Raises:
      ConfigurationError: the file is missing or not TOML, or it sets what the command does not know.
    """
    name, rest = _take_option(argv, "--config")
    if name is None:
        return argv
    path = Path(name)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not a TOML file ({error})") from error
    known = {field.name for field in dataclasses.fields(command)}
    unknown = sorted(set(values) - known - {"preset"})
    if unknown:
        raise ConfigurationError(
            f"{path}: sets {', '.join(unknown)}, which is no option of this command; --help lists them"
        )
    return as_options(values) + rest


def add_preset(argv: list[str], presets: dict[str, dict[str, Any]], default: str | None = None) -> list[str]:
    """Replace `--preset NAME` by the options that it stands for, so that the others win.

    Args:
      argv: the options given.
      presets: from names to settings.
      default: the preset where none is named; no options are added where this is None too.

    Returns:
      The preset's options, then the others.

    Raises:
      ConfigurationError: there is no such preset.
    """
    name, rest = _take_option(argv, "--preset")
    name = default if name is None else name
    if name is None:
        return argv
    if name not in presets:
        raise ConfigurationError(f"unknown preset {name!r}; choose from {', '.join(presets)}")
    return as_options(presets[name]) + rest


def _take_option(argv: list[str], flag: str) -> tuple[str | None, list[str]]:
    """Take the last value of an option, and all its mentions, out of the words."""
    value, rest = None, []
    words = iter(argv)
    for word in words:
        if word == flag:
            value = next(words, None)
            if value is None:
                raise ConfigurationError(f"{flag} needs a value")
        elif word.startswith(f"{flag}="):
            value = word.removeprefix(f"{flag}=")
        else:
            rest.append(word)
    return value, rest


def as_options(values: dict[str, Any]) -> list[str]:
    """Write settings as command-line options.

    Args:
      values: from a setting's name to its value: a string, number, boolean, None, or a list of those.

    Returns:
      The words of the options.
    """
    words = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *map(str, value if isinstance(value, list | tuple) else [value])]
    return words


def settings_of(command: Any, kind: type[_Settings]) -> _Settings:
    """Take from a command's options those that are the settings of an experiment.

    Args:
      command: a dataclass that inherits from `kind`.
      kind: the dataclass wanted.

    Returns:
      An instance of it.
    """
    return kind(**{field.name: getattr(command, field.name) for field in dataclasses.fields(kind)})  # type: ignore[arg-type]


def set_up_devices(devices: int | None) -> None:
    """Make JAX see the devices wanted: one per CPU core, or the first accelerators. Call it before JAX is used.

    Args:
      devices: how many; None for all.

    Raises:
      ConfigurationError: fewer than 1, or more than there are accelerators.
    """
    if devices is not None and devices < 1:
        raise ConfigurationError(f"devices is {devices}, but must be at least 1")
    import jax

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    jax.config.update("jax_num_cpu_devices", devices or cores)
    if devices is not None:
        jax.config.update("jax_cuda_visible_devices", ",".join(map(str, range(devices))))
        if jax.local_device_count() != devices:
            raise ConfigurationError(f"devices is {devices}, but there are {jax.local_device_count()}")
