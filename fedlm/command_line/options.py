"""What sub-commands share in reading their options."""

import contextlib
import io
import itertools
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro

from fedlm.command_line.described_options import Option, OptionGroup, documentation, option_groups
from fedlm.command_line.option_help import HELP, HELP_ALL, print_help
from fedlm.command_line.suggestions import UnknownOptionsError
from fedlm.command_line.typed_words import checked, unread
from fedlm.fl_core.composed_settings import value_hints, value_types
from fedlm.fl_core.errors import ConfigurationError, DataError, setting
from fedlm.fl_core.fitting_values import fitting_value
from fedlm.fl_core.text_encodings import utf8_text

_Command = TypeVar("_Command")
_DASHES = "-\N{EN DASH}\N{EM DASH}"  # the last two come along with text that is copied
_EVERYWHERE = ("preset", "config", "help_all")


def read_options(
    command: type[_Command],
    argv: list[str],
    prog: str,
    *,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    default_preset: str | None = None,
    essentials: Sequence[str] = (),
) -> _Command:
    """Read a command's options from the line, the TOML file that `--config` names and the preset that `--preset` names.

    The line wins over the file, and the file over the preset; help shows what file and preset set as defaults. What
    does nothing any more beside a choice that won over it goes back to its default. The fields of a dataclass within
    the command are options like the command's own, and lie beside these in a file. `--help` explains what is essential
    and names the others, `--help-all` explains all.

    Args:
      command: the dataclass of the options.
      argv: the words of the line.
      prog: the command, as it is typed.
      presets: from names to settings; such a command's file may name a preset too. None: `--preset` is no option.
      default_preset: the preset where none is named; None for no preset.
      essentials: names of the options that `--help` explains; all where there are none.

    Raises:
      ConfigurationError: the file or the preset is missing, or sets what is no option or does not fit one; or values
        do not fit.
    """
    file, argv = _take_option(argv, "--config")
    settings = {} if file is None else _read_file(Path(file))
    of_preset: dict[str, Any] = {}
    if presets is not None:
        in_file = settings.pop("preset", default_preset)
        on_line, argv = _take_option(argv, "--preset")
        preset = in_file if on_line is None else on_line
        if preset not in [None, *presets]:
            raise ConfigurationError(f"unknown preset {preset!r}; choose from {', '.join(presets)}")
        if preset is not None:
            of_preset = _fitting(presets[preset], command, f"preset {preset}")
    of_file = _fitting(settings, command, str(file))
    with_defaults = unread(command, of_preset | of_file)
    if {*HELP, HELP_ALL} & {*argv}:
        groups = option_groups(command, with_defaults)
        groups[1].options.extend(_of_every_command(presets, default_preset, bool(essentials)))
        briefly = essentials and HELP_ALL not in argv
        print_help(prog, documentation(command), groups, [*essentials, *_EVERYWHERE] if briefly else None)
        raise SystemExit(0)
    _refuse_unknown(argv, command)
    words = _filled_in(with_defaults, argv, prog, option_groups(command, with_defaults))
    return checked(command, words, argv, of_file=of_file, of_preset=of_preset)


def _filled_in(record: Any, argv: list[str], prog: str, groups: Sequence[OptionGroup]) -> Any:
    """Let tyro fill in the options; what it complains of in a box becomes one line.

    Raises:
      ConfigurationError: options are missing, or their values do not fit.
    """
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(type(record), args=argv, prog=prog, default=record, config=(tyro.conf.OmitArgPrefixes,))
    except SystemExit:
        lines = [line.strip("╭╮│ ") for line in re.sub(r"\x1b\[[0-9;]*m", "", box.getvalue()).splitlines()]
        said = list(itertools.takewhile(lambda line: not line.startswith(("───", "╰")), lines[1:]))
        heads = {line.partition(" ")[0] for line in said} if "Required options" in lines[0] else set()
        options = [one for group in groups for one in group.options if one.default is tyro.MISSING]
        names = [one.flag for one in options if {one.flag, one.name} & heads]
        what = f"give {' and '.join(names)}" if names else " ".join(said).removesuffix(".")
        raise ConfigurationError(f"{what}; --help explains the options") from None


def _of_every_command(
    presets: Mapping[str, Mapping[str, Any]] | None, default_preset: str | None, has_more: bool
) -> list[Option]:
    """List the options that are read before those of the command's dataclass."""
    preset = f"Settings to begin with: {', '.join(presets or ())}. The file and the command line win over it."
    found = [Option("preset", "NAME", preset, default_preset)] if presets is not None else []
    file = "TOML file of options, such as `seed = 1`. The command line wins over it."
    found.append(Option("config", "FILE", file))
    if has_more:
        found.append(Option("help_all", "", "Explain all options."))
    return found


def _refuse_unknown(argv: list[str], command: type) -> None:
    """Refuse what looks like an option and is none of the command's, and say what may have been meant."""
    kinds = value_types(command)
    known = {*kinds, *(f"no_{name}" for name, kind in kinds.items() if kind is bool)}
    nameless = _nameless(command)
    unknown = {}
    for word in argv:
        flag = word.partition("=")[0]
        name = flag.lstrip(_DASHES).replace("-", "_")
        an_option = word.startswith(tuple(_DASHES)) and name[:1].isalpha() and not _is_number(word)
        if an_option and name in nameless:
            raise ConfigurationError(f"{flag} is no option: {name.upper()} is given without a name; leave {flag} out")
        if an_option and not (flag.startswith("--") and name in known):
            unknown[flag] = name
    if unknown:
        raise UnknownOptionsError(f"there is no option {', '.join(unknown)}", list(unknown.values()), kinds)


def _nameless(command: type) -> set[str]:
    """Find the fields of a command that are given without their names."""
    hints = value_hints(command)
    return {name for name, hint in hints.items() if tyro.conf.Positional in getattr(hint, "__metadata__", ())}


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


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


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(utf8_text(path, path.read_bytes()))
    except DataError as error:
        raise ConfigurationError(str(error)) from error
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, and brackets as deep
        raise ConfigurationError(f"{path}: not a TOML file ({error})") from error


def _fitting(settings: Mapping[str, Any], command: type, source: str) -> dict[str, Any]:
    kinds = value_types(command)
    if unknown := sorted(settings.keys() - kinds.keys()):
        what = f"{source}: sets {', '.join(unknown)}, which is no option of this command"
        if any(isinstance(settings[name], dict) for name in unknown):
            raise ConfigurationError(f"{what}; settings are in no table")
        raise UnknownOptionsError(what, unknown, kinds, "")
    fitting = {}
    for name, value in settings.items():
        try:
            fitting[name] = fitting_value(value, kinds[name])
        except TypeError as error:
            raise ConfigurationError(f"{source}: {name} is {value!r}, but {error}") from None
    return fitting


def set_up_devices(devices: int | None, of_cpu: int | None = None) -> None:
    """Make JAX see so many devices, or all: one per CPU core, or the first accelerators. Call it before JAX is used.

    Where there is no accelerator, and no number is given, there are `of_cpu` devices, which share all cores.

    Raises:
      ConfigurationError: fewer than 1, or more than there are accelerators.
    """
    import jax

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    jax.config.update("jax_num_cpu_devices", devices or of_cpu or cores)
    if devices is not None:
        jax.config.update("jax_cuda_visible_devices", ",".join(map(str, range(devices))))
        if jax.local_device_count() != devices:
            raise ConfigurationError(f"{setting('devices')} is {devices}, but there are {jax.local_device_count()}")
