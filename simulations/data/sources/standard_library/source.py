"""This machine's Python standard library as a source: one module is one client."""

from dataclasses import dataclass
from pathlib import Path

from fedlm.simulations.data.sources.base import Part, Progress, Reading
from fedlm.simulations.data.sources.standard_library.corpus import module_files, read_modules, stdlib_root

MODULES_PER_PART = 400


@dataclass(frozen=True)
class StandardLibrary:
    """English sentences of this machine's Python standard library, one module a client."""

    words_are_separated = False

    def files(self) -> list[Path]:
        return [path for _, path in module_files(stdlib_root())]

    def open(self, workspace: Path, progress: Progress) -> Reading:
        modules = module_files(stdlib_root())
        slices = [modules[first : first + MODULES_PER_PART] for first in range(0, len(modules), MODULES_PER_PART)]
        return Reading("modules", len(modules), [Part(some, len(some)) for some in slices], read_modules)
