"""English sentences from the docstrings and comments of this machine's Python standard library.

One module is one client. The corpus needs no download, is the same for every run of one Python version, and
has the heavy tail that makes federated data awkward: most modules say little, a few say very much.
"""

import ast
import itertools
import os
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.sources.base import Part, Progress, Reading
from fedlm.simulations.data.sources.english import sentences

MODULES_PER_PART = 400
EXCLUDED_DIRECTORIES = frozenset({"site-packages", "dist-packages", "__pycache__", "lib-dynload"})

_STATEMENT_LISTS = ("body", "handlers", "orelse", "finalbody", "cases")
_STRING_OR_COMMENT = re.compile(
    r"""'''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"|'(?:[^\\'\n]|\\.)*'|"(?:[^\\"\n]|\\.)*"|\#[^\n]*""", re.DOTALL
)


@dataclass(frozen=True)
class StandardLibrary:
    """English sentences of this machine's Python standard library, one module a client."""

    words_are_separated = False
    # Who wrote a module is not known, and many wrote several.
    without_users = True

    def files(self) -> list[Path]:
        return [path for _, path in module_files(stdlib_root())]

    def open(self, workspace: Path, progress: Progress) -> Reading:
        modules = module_files(stdlib_root())
        slices = [modules[first : first + MODULES_PER_PART] for first in range(0, len(modules), MODULES_PER_PART)]
        return Reading("modules", len(modules), [Part(some, len(some)) for some in slices], read_modules)


def stdlib_root() -> Path:
    """Return the directory of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def module_files(root: Path) -> list[tuple[str, Path]]:
    """Return (dotted module name, file) of every module under `root`, sorted by name.

    Files and directories whose names are not Python identifiers cannot be imported and are left out; this also drops
    the build configuration, whose name carries the platform.
    """
    found: list[tuple[str, Path]] = []
    for directory, subdirectories, files in os.walk(root):
        subdirectories[:] = sorted(
            name for name in subdirectories if name.isidentifier() and name not in EXCLUDED_DIRECTORIES
        )
        package = Path(directory).relative_to(root).parts
        for file in files:
            stem, extension = os.path.splitext(file)
            if extension == ".py" and stem.isidentifier():
                name = ".".join(package if stem == "__init__" and package else (*package, stem))
                found.append((name, Path(directory, file)))
    if not found:
        raise DataError(
            f"{root}: found no Python source file, expected the standard library. "
            "Use a Python installation that ships its standard library as .py files."
        )
    return sorted(found)


def docstrings(source: str) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and its functions, indentation cleaned.

    Raises SyntaxError, ValueError or RecursionError where the source does not parse.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text
        # Definitions stand only in statement lists; skipping expressions makes the walk several times faster.
        for block in reversed(_STATEMENT_LISTS):
            pending.extend(reversed(getattr(node, block, None) or ()))


def comment_blocks(source: str) -> Iterator[str]:
    """Yield the comments of a module; comments at one column of consecutive lines are one block.

    A comment that follows code on its line begins a block of its own, so that the labels beside the rows of a
    table of data do not run together. One regular expression tells comments from strings: the standard
    `tokenize` module finds the same comments, much more slowly (they differ only after an f-string that nests
    its own quotes, which Python 3.12 allows).
    """
    lines: list[str] = []
    previous_end = previous_column = 0
    for match in _STRING_OR_COMMENT.finditer(source):
        if match[0][0] != "#":
            continue
        gap = source[previous_end : match.start()]
        column = match.start() - source.rfind("\n", 0, match.start()) - 1
        if lines and not (gap.isspace() and gap.count("\n") == 1 and column == previous_column):
            yield "\n".join(lines)
            lines = []
        lines.append(match[0].lstrip("#:").removeprefix(" "))
        previous_end, previous_column = match.end(), column
    if lines:
        yield "\n".join(lines)


def module_sentences(source: str) -> list[str]:
    """Return the English sentences of a module's source: docstrings first, then comments, in file order.

    Raises what `docstrings` raises.
    """
    blocks = itertools.chain(docstrings(source), comment_blocks(source))
    return [sentence for block in blocks for sentence in sentences(block)]


def read_modules(modules: Iterable[tuple[str, Path]], skipped: SkippedCounts) -> Iterator[ClientText]:
    """Yield one client for each module (dotted name, file) with an English sentence; the others are counted."""
    for name, path in modules:
        found = _read_module(path, skipped)
        if found:
            yield ClientText(name, found)


def _read_module(path: Path, skipped: SkippedCounts) -> list[str]:
    try:
        with tokenize.open(path) as file:
            source = file.read()
    except OSError:
        skipped.add("module cannot be read", place=str(path))
        return []
    except (SyntaxError, UnicodeError):
        skipped.add("module does not decode", place=str(path))
        return []
    try:
        found = module_sentences(source)
    except (SyntaxError, ValueError, RecursionError):
        skipped.add("module does not parse", place=str(path))
        return []
    if not found:
        skipped.add("module without sentences", place=str(path))
    return found
