"""Finding the files of Stack Exchange dumps: by their names, in folders and in 7z archives."""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, cast

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.sources.tables.byte_parts import unreadable

Kind = Literal["posts", "comments"]
"""What a file holds, which is also the name of its outermost element."""

_DUMP_NAME = re.compile(r"(?:(?P<site>.+)[.-])?(?P<kind>Posts|Comments)\.xml(?:\.(?:gz|bz2|xz|lzma))?", re.IGNORECASE)
_ARCHIVE_NAME = re.compile(
    r"(?P<site>.+?)(?:-(?P<table>Badges|Comments|PostHistory|PostLinks|Posts|Tags|Users|Votes))?\.7z", re.IGNORECASE
)
_EXPECTED = (
    "SITE.Posts.xml, SITE.Comments.xml (or without SITE, in a folder named after it; perhaps compressed: .gz, .bz2 or "
    ".xz), or SITE.7z"
)


class Dump(NamedTuple):
    """The posts or the comments of one site."""

    path: Path  # of the file or the archive
    member: str | None  # its name in the archive; None where it is a file of its own
    size: int  # in bytes: of the file as it is, of a member decompressed
    site: str  # its short name
    kind: Kind

    def __str__(self) -> str:
        return str(self.path / self.member if self.member else self.path)


def find_dumps(paths: Sequence[Path], kinds: Collection[Kind]) -> list[Dump]:
    """Find dumps, one of a site and kind, in files, archives, and folders that hold them or hold folders that do.

    They come in a fixed order, those of one archive together.
    """
    if not paths:
        raise DataError("no file is named, expected at least one to import.")
    found = [dump for path in paths for dump in _dumps_at(path)]
    dumps: dict[tuple[str, Kind], Dump] = {}
    for dump in found:
        if dump.kind not in kinds:
            continue
        other = dumps.setdefault((dump.site, dump.kind), dump)
        if other is not dump:
            raise DataError(
                f"{other} and {dump}: both are the {dump.kind} of {dump.site!r}, expected one of each site. "
                "Name only one of them, or name files of different sites SITE.Posts.xml."
            )
    if not dumps:
        raise DataError(f"{paths[0]}: found no {' or '.join(kinds)} to import, expected {_EXPECTED}.")
    return list(dumps.values())


def site_name(name: str) -> str:
    """Return a site's short name: without `.stackexchange.com` or `.com`."""
    return name.removesuffix(".com").removesuffix(".stackexchange")


def _dumps_at(path: Path) -> list[Dump]:
    if path.is_dir():
        found = [dump for file in _files_in(path) for dump in _dumps_of_file(file)]
        if not found:
            raise DataError(f"{path}: found neither posts nor comments in this folder, expected {_EXPECTED}.")
        return found
    found = list(_dumps_of_file(path)) if path.is_file() else []
    if not found:
        what = "neither posts nor comments, judging by the name" if path.is_file() else "nothing"
        raise DataError(f"{path}: found {what}, expected {_EXPECTED}, or a folder with such files.")
    return found


def _files_in(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of the folders in it."""
    for path in _entries(folder):
        if path.is_file():
            yield path
        elif path.is_dir():
            yield from (inner for inner in _entries(path) if inner.is_file())


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise unreadable(folder, error) from error


def _dumps_of_file(path: Path) -> Iterator[Dump]:
    """Yield what a file holds; nothing where its name is that of another file."""
    if match := _DUMP_NAME.fullmatch(path.name):
        try:
            size = path.stat().st_size
        except OSError as error:
            raise unreadable(path, error) from error
        site = match["site"] or Path(os.path.abspath(path)).parent.name
        yield _dump(path, None, size, site=site, kind=match["kind"])
    elif match := _ARCHIVE_NAME.fullmatch(path.name):
        if (match["table"] or "Posts").lower() not in ("posts", "comments"):
            return
        from fedlm.simulations.data.sources.stackexchange.seven_zip import list_members

        for member in list_members(path):
            name = _DUMP_NAME.fullmatch(member.name.rpartition("/")[2])
            if name:
                yield _dump(path, member.name, member.size, site=name["site"] or match["site"], kind=name["kind"])


def _dump(path: Path, member: str | None, size: int, *, site: str, kind: str) -> Dump:
    if not site:
        raise DataError(f"{path}: does not name its site, expected {_EXPECTED}. Rename it.")
    return Dump(path, member, size, site_name(site), cast(Kind, kind.lower()))
