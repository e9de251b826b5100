"""Which of several copies of a run's folder goes on.

A run that goes on in two places draws the same noise in both, for sums that may differ. So a folder knows where it
lies, and a copy does not go on beside the one that it was made of. Where all copies see a place in common, as the
database of a deployment or a data set's privacy budget, each process enters itself there when it begins: a copy of a
folder that has gone on since finds another entered, and a process finds so before it releases anything more.
"""

import contextlib
import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from fedlm.fl_core.atomic_files import Fence, write_atomically
from fedlm.fl_core.errors import CheckpointError

LINEAGE_FILE = "lineage.json"


class CommonPlace(Protocol):
    """What all copies of a run's folder see."""

    def enter(self, known: Sequence[str], name: str) -> bool:
        """Enter a process as the one that goes on, durably, where nobody is entered, or one of those that are `known`;
        returns False where it is another."""
        ...

    def entered(self, name: str) -> bool:
        """Say whether a process is entered still."""
        ...


class Lineage:
    """The processes that a run went through, in the folder that the last of them uses."""

    def __init__(self, directory: Path, common: CommonPlace | None, fence: Fence = contextlib.nullcontext):
        """Name the folder of a run, which this process alone writes, within the fence."""
        self._directory, self._common, self._fence = directory.resolve(), common, fence
        self._name = secrets.token_hex(8)

    def go_on(self, begun: bool = False) -> None:
        """Become the process that goes on, with a run that has been begun before or not. Raises CheckpointError where
        another copy of the folder does, or may."""
        here = str(self._directory)
        found = _read(self._directory)
        if found is None and begun:
            raise CheckpointError(
                f"{self._directory / LINEAGE_FILE}: is missing, so that this folder may be a copy of one that goes on; "
                "put the file back"
            )
        record = found or {"run": secrets.token_hex(16), "folder": here, "processes": []}
        original = Path(record["folder"])
        other = _read(original) if original != self._directory else None
        if other is not None and other["run"] == record["run"] and not original.samefile(self._directory):
            raise CheckpointError(
                f"{self._directory}: a copy of {original}, which is still there. A run may go on in one place alone: "
                "go on there, or remove that folder first"
            )
        known = record["processes"]
        # Known before it is entered, so that a crash between the two does no harm.
        content = json.dumps(record | {"folder": here, "processes": [*known, self._name]})
        with self._fence():
            write_atomically(self._directory / LINEAGE_FILE, content + "\n", private=True)
        if self._common is not None and not self._common.enter(known, self._name):
            raise self._gone_on()

    def check(self) -> None:
        """Raise CheckpointError where a copy of the folder has gone on since."""
        if self._common is not None and not self._common.entered(self._name):
            raise self._gone_on()

    def _gone_on(self) -> CheckpointError:
        return CheckpointError(
            f"{self._directory}: this run has gone on in a copy of this folder, or this is an older copy. A run may go "
            "on in one place alone: go on there"
        )


def _read(directory: Path) -> dict[str, Any] | None:
    path = directory / LINEAGE_FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {"run": str(record["run"]), "folder": str(record["folder"]), "processes": list(record["processes"])}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); put the file back as it was") from error
