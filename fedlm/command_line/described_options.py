"""What the options of a command are, for its help and for whoever mistypes one: read from its dataclass.

Options stand in groups. A group is a record of settings, or a documented class that a record inherits from, so that a
new field is explained where it belongs, without another line anywhere.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import tyro
from typing_extensions import Doc

_VALUES = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}
_END_OF_SENTENCE = re.compile(r"(?<!\bal)(?<!e\.g)(?<!i\.e)(?<!\.)\.(?=\s|$)")
_BRIEF = 120  # characters


@dataclass(frozen=True)
class Option:
    """One option of a command.

    Attributes:
      name: of its field.
      values: what it takes, as help writes it; empty where it is switched on by its name alone.
      text: what it does.
      default: `tyro.MISSING` where it must be given.
      positional: it is given without its name.
    """

    name: str
    values: str
    text: str
    default: Any = None
    positional: bool = False

    @property
    def flag(self) -> str:
        """How it is typed, without its value."""
        if self.positional:
            return self.name.upper()
        switched_off = "[no-]" if self.default is True else ""
        return f"--{switched_off}{self.name.replace('_', '-')}"

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is tyro.MISSING

    @property
    def summary(self) -> str:
        """What it does in brief: the first sentence, and others as far as they are short."""
        ends = [found.end() for found in _END_OF_SENTENCE.finditer(self.text)] or [len(self.text)]
        short = [end for end in ends[1:] if end <= _BRIEF and not self.text[ends[0] + 1].islower()]
        return self.text[: max([ends[0], *short])]


@dataclass(frozen=True)
class OptionGroup:
    """Options that belong together, and what they are about."""

    title: str
    options: list[Option]


def option_groups(command: type, defaults: Any) -> list[OptionGroup]:
    """List a command's options by the records that they stand in: what is given without a name, its own, the others.

    Args:
      command: its dataclass.
      defaults: a record with the same fields, in which what must be given is `tyro.MISSING`.
    """
    positional, own, others = OptionGroup("arguments", []), OptionGroup("options", []), []
    for group in _groups(command, defaults, own.title):
        positional.options.extend(option for option in group.options if option.positional)
        named = [option for option in group.options if not option.positional]
        if group.title == own.title:
            own.options.extend(named)
        elif named:
            others.append(OptionGroup(group.title, named))
    return [positional, own, *others]


def documentation(kind: type) -> str:
    """Read what a class says of itself, without what `dataclass` writes where it says nothing."""
    text = inspect.cleandoc(kind.__dict__.get("__doc__") or "")
    return "" if text.startswith(f"{kind.__name__}(") else text


def first_sentence(text: str) -> str:
    """Cut a text before its first full stop."""
    return _END_OF_SENTENCE.split(" ".join(text.split()), maxsplit=1)[0]


def _groups(kind: type, record: Any, title: str) -> list[OptionGroup]:
    """List the groups of a record: its own and those of documented classes that it inherits from, then those within."""
    hints, texts, homes = typing.get_type_hints(kind, include_extras=True), _texts(kind), _homes(kind)
    of_homes: dict[type, list[Option]] = {}
    within: list[OptionGroup] = []
    for field in dataclasses.fields(kind):
        value, hint = getattr(record, field.name), hints[field.name]
        if dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            about = texts.get(field.name) or documentation(hint)
            within += _groups(hint, value, first_sentence(about))
        else:
            of_homes.setdefault(homes[field.name], []).append(_option(field.name, hint, texts, value))
    titles = {home: first_sentence(documentation(home)) for home in of_homes} | {kind: title}
    return [*(OptionGroup(titles[home], options) for home, options in of_homes.items()), *within]


def _option(name: str, hint: Any, texts: dict[str, str], default: Any) -> Option:
    extras = hint.__metadata__ if get_origin(hint) is typing.Annotated else ()
    text = next((extra.documentation for extra in extras if isinstance(extra, Doc)), texts.get(name, ""))
    positional = any(extra is tyro.conf.Positional for extra in extras)
    return Option(name, _values(hint), " ".join(text.split()), default, positional)


def _homes(kind: type) -> dict[str, type]:
    """From the names of a class's fields to the documented class that it inherits each from, or else to itself."""
    homes: dict[str, type] = {}
    for base in kind.__mro__:
        home = base if dataclasses.is_dataclass(base) and documentation(base) else kind
        homes = dict.fromkeys(inspect.get_annotations(base), home) | homes
    return homes


def _texts(kind: type) -> dict[str, str]:
    """From the names of fields to the strings that follow them in the source, also of inherited ones."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except OSError:  # made while the program runs, of others that have a source
            continue
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    texts[name] = words
    return texts


def _values(hint: Any) -> str:
    if get_origin(hint) is typing.Annotated:
        return _values(get_args(hint)[0])
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _values(next(part for part in parts if part is not types.NoneType))
    if origin is tuple:
        return f"{_values(parts[0])}..."
    if origin is Literal:
        return f"{{{', '.join(str(part) for part in parts if part is not None)}}}"
    return "" if hint is bool else _VALUES.get(hint, "TEXT")
