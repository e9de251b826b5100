"""`make compare`'s small preset, whole, on the text of this Python's standard library: the product from end to end."""

import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any


def measure(changes: dict[str, Any], modules: int | None) -> dict[str, Any]:
    """Import the text and run the comparison, cell by cell in worker processes that share the devices.

    Args:
      changes: settings in place of the preset's.
      modules: of the standard library that are imported; all where None.
    """
    from fedlm.fl_core.composed_settings import compose
    from fedlm.simulations.comparisons.comparison import run_comparison
    from fedlm.simulations.experiments.configuration import Comparison
    from fedlm.simulations.experiments.presets import PRESETS

    with tempfile.TemporaryDirectory() as folder:
        out, started = Path(folder), time.perf_counter()
        _import_text(out / "data", modules)
        imported = time.perf_counter()
        settings = {name: _fixed(value) for name, value in (PRESETS["small"] | changes).items()}
        comparison = compose(Comparison, data=out / "data", **settings)
        results = run_comparison(comparison, out / "compare")
        finished = time.perf_counter()
        report = None
        with contextlib.suppress(ModuleNotFoundError):
            from fedlm.simulations.reporting.report import write_report

            write_report(comparison, results, out / "compare", "benchmarks.accelerator")
            report = time.perf_counter() - finished
    failed = [one for one in results if one.status == "failed"]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(results)} cells failed: {failed[0].summary.get('error')}")
    return {
        "cells": len(results),
        "rounds": comparison.rounds,
        "seconds_to_import": imported - started,
        "seconds": finished - imported,
        "seconds_to_report": report,
        "perplexity": {
            one.cell.directory.relative_to(out / "compare" / "cells").as_posix(): one.summary.get("test_perplexity")
            for one in results
        },
    }


def _fixed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _import_text(out: Path, modules: int | None) -> None:
    from fedlm.simulations.data.client_text import SkippedCounts
    from fedlm.simulations.data.importing import import_text
    from fedlm.simulations.data.sources.in_memory import InMemoryText
    from fedlm.simulations.data.sources.standard_library import (
        StandardLibrary,
        module_files,
        read_modules,
        stdlib_root,
    )

    if modules is None:
        import_text("stdlib", StandardLibrary(), out)
        return
    some = read_modules(module_files(stdlib_root())[:modules], SkippedCounts())
    import_text("stdlib", InMemoryText(list(some)), out)
