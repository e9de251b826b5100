"""Members of 7z archives: listed, and extracted beside the store for as long as they are read."""

import errno
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fedlm.fl_core.errors import DataError
from fedlm.fl_core.extras import extra
from fedlm.simulations.data.sources.tables.byte_parts import unreadable

with extra("data"):
    import py7zr
    from py7zr.exceptions import CrcError, PasswordRequired, UnsupportedCompressionMethodError


class Member(NamedTuple):
    """A file in an archive."""

    name: str  # with folders, if any
    size: int  # in bytes, decompressed


def list_members(path: Path) -> list[Member]:
    """List the files in an archive; raises DataError where it cannot be read, is damaged, or is not a 7z archive."""
    with _archive_errors(path), path.open("rb") as file, py7zr.SevenZipFile(file) as archive:
        return [Member(found.filename, found.uncompressed or 0) for found in archive.list() if not found.is_directory]


@contextmanager
def extracted(path: Path, names: Collection[str], folder: Path) -> Iterator[None]:
    """Extract members of an archive into a folder, which is removed when the block ends.

    Raises DataError as `list_members`, and OSError where the disk is full.
    """
    shutil.rmtree(folder, ignore_errors=True)  # a killed import may have left it
    try:
        # Given a file, not a path, py7zr decompresses one member at a time.
        with _archive_errors(path), path.open("rb") as file, py7zr.SevenZipFile(file) as archive:
            archive.extract(folder, targets=list(names))
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _archive_errors(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong with an archive into a message."""
    try:
        yield
    except PasswordRequired as error:
        raise DataError(
            f"{path}: is protected by a password, expected an archive that can be read as it is."
        ) from error
    except UnsupportedCompressionMethodError as error:
        raise DataError(
            f"{path}: is compressed in a way that cannot be read here ({error.message}). "
            "Extract it with 7-Zip, and import the files in it."
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise unreadable(path, error) from error
    except Exception as error:  # py7zr raises what its steps happen to meet in damaged bytes
        what = f"wrong checksum of {error.filename}" if isinstance(error, CrcError) else str(error) or repr(error)
        raise DataError(
            f"{path}: is damaged, cut off or not a 7z archive ({what}). Fetch it again, and check that it is complete."
        ) from error
