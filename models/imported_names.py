"""Objects of a user's own modules by name: `my_models:TRIGRAM` is what `my_models.py` calls TRIGRAM.

A name, unlike an object, can be written on a command line, kept in a run's record and sent to worker processes, each of
which imports the module for itself.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedlm.models.errors import ConfigurationError


class UnknownNameError(ConfigurationError):
    """Nothing has the name that was asked for, or something of another kind has it."""


def is_imported_name(name: str) -> bool:
    """Say whether a name is one of an object in a module, and not one of a registry."""
    return ":" in name


def import_named(
    name: str,
    *,
    what: str,
    expected: str,
    fits: Callable[[Any], bool],
    error: type[UnknownNameError] = UnknownNameError,
) -> Any:
    """Import what `module:NAME` names; a module is looked for in the current folder first, as `python -m` does.

    Args:
      name: `module:NAME`; the module may be in a package, as in `package.module:NAME`.
      what: for messages, the setting that is named, `model` say.
      expected: for messages, what the object must be.
      fits: whether an object is that.
      error: the class of what is raised.

    Raises:
      UnknownNameError: the module cannot be imported, has no such name, or the object does not fit.

    Example:
      >>> import_named("math:tau", "number", "a float", lambda found: isinstance(found, float))
      6.283185307179586
    """
    module_name, _, attribute = name.partition(":")
    try:
        with _current_folder_first():
            module = importlib.import_module(module_name)
    except Exception as problem:
        raise error(
            f"{what} {name!r}: the module {module_name!r} cannot be imported ({_described(problem)}); it is looked for "
            "in the current folder and in PYTHONPATH"
        ) from problem
    if not hasattr(module, attribute):
        own = ", ".join(known for known, value in vars(module).items() if fits(value)) or "nothing of that kind"
        raise error(f"{what} {name!r}: {module_name!r} has no {attribute!r}, but {own}")
    found = getattr(module, attribute)
    if not fits(found):
        raise error(
            f"{what} {name!r}: found {type(found).__name__} as {attribute!r} in {module_name!r}, expected {expected}"
        )
    return found


@contextmanager
def _current_folder_first() -> Iterator[None]:
    """Look for modules in the current folder first, for as long as a module is imported, and afterwards last: what it
    imports later is found, and nothing there stands in the way of an installed module."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
        if here not in sys.path and "" not in sys.path:
            sys.path.append(here)


def _described(problem: Exception) -> str:
    frames = traceback.extract_tb(problem.__traceback__)
    own = [
        frame for frame in frames if not frame.filename.startswith("<frozen") and frame.filename != importlib.__file__
    ]
    place = f" at {own[-1].filename}:{own[-1].lineno}" if len(own) > 1 else ""
    return f"{type(problem).__name__}: {problem}{place}"
