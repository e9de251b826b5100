"""What is said where a file cannot be written."""

import errno
import os
from pathlib import Path

import pytest

from fedlm.fl_core.atomic_files import disk_errors
from fedlm.fl_core.errors import DiskError


def test_too_many_open_files_are_not_taken_for_a_full_disk():
    for number, said in ((errno.EMFILE, "ulimit -n"), (errno.ENFILE, "ulimit -n"), (errno.ENOSPC, "Make room")):
        with pytest.raises(DiskError) as found, disk_errors(Path("file")):
            raise OSError(number, os.strerror(number))
        assert said in str(found.value)
        assert ("Make room" in str(found.value)) == (number == errno.ENOSPC)
