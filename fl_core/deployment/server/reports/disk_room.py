"""How much of a disk reports may take: what the database and the next checkpoint need is left to them."""

import shutil
from pathlib import Path
from typing import NamedTuple


class DiskRoom(NamedTuple):
    """A folder for reports, on a disk that others write to."""

    folder: Path
    kept: int = 0  # bytes of its disk that reports leave alone

    def left(self) -> int:
        """Say how many bytes reports may take yet."""
        return shutil.disk_usage(self.folder).free - self.kept
