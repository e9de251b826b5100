"""What sub-commands share in reading their options."""

import dataclasses
import os
import sys
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from fl_core.errors import ConfigurationError

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
    if "--config" not in argv:
        return argv
    position = argv.index("--config")
    if position + 1 == len(argv):
        raise ConfigurationError("--config needs the path of a TOML file")
    path = Path(argv[position + 1])
    rest = argv[:position] + argv[position + 2 :]
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not a TOML file ({error})") from error
    known = {field.name for field in dataclasses.fields(command)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ConfigurationError(
            f"{path}: sets {', '.join(unknown)}, which is no option of this command; --help lists them"
        )
    return as_options(values) + rest


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
      ConfigurationError: fewer than 1.
    """
    if devices is not None and devices < 1:
        raise ConfigurationError(f"devices is {devices}, but must be at least 1")
    import jax

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    jax.config.update("jax_num_cpu_devices", devices or cores)
