"""Runs modules that IREE has compiled; imported in the process of `worker.py` alone."""

from collections.abc import Callable, Sequence
from typing import Any

import iree.runtime as runtime

from fedlm_client.manifest import Program

Run = Callable[[Sequence[Any]], list[Any]]


def load(content: bytes, program: Program) -> Run:
    """Load a compiled program."""
    configuration = runtime.Config("local-task")
    module = runtime.VmModule.copy_buffer(configuration.vm_instance, content)
    loaded = runtime.load_vm_module(module, configuration)

    def run(arguments: Sequence[Any]) -> list[Any]:
        given = loaded["main"](*arguments)
        return list(given) if isinstance(given, list | tuple) else [given]

    return run
