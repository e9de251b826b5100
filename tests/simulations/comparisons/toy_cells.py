"""Cells that train nothing, for tests of what executes cells."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.worker_processes import cpu_cores


@dataclass(frozen=True)
class ToyCell:
    """Reports three rows and writes how many CPU cores it had, or does not."""

    directory: Path
    fate: Literal["finishes", "fails", "refuses", "is killed once", "is killed"] = "finishes"

    def is_finished(self) -> bool:
        return (self.directory / "done").exists()

    def run(self, report: Callable[[dict[str, Any]], None]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        for row in range(3):
            report({"row": row})
        first = not (self.directory / "begun").exists()
        (self.directory / "begun").touch()
        if self.fate == "is killed" or (first and self.fate == "is killed once"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fate == "fails":
            raise ArithmeticError("the toy is broken")
        if self.fate == "refuses":
            raise ConfigurationError("toys is 0, but must be at least 1")
        (self.directory / "done").write_text(str(len(cpu_cores())))
