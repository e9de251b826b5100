"""Dumps of Stack Exchange sites, Stack Overflow among them: one user of one site is one client."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import tyro

from fedlm.fedlm_client.text.text_examples import split_sentences
from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.sources.base import PART_BYTES, Part, Progress, Reading
from fedlm.simulations.data.sources.stackexchange.files import Dump, Kind, find_dumps
from fedlm.simulations.data.sources.stackexchange.rows import last_row_start, read_rows
from fedlm.simulations.data.sources.tables.byte_parts import BytePart, byte_parts, stream_parts

_QUESTION_OR_ANSWER = ("1", "2")
_COMMUNITY_USER = "-1"  # the site itself, which owns what many have written
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TEST_BEGINS = 1_514_764_800_000  # milliseconds from then to 2018, as in the published Stack Overflow data


class DumpPart(NamedTuple):
    """Some rows of a dump, of the site with that short name."""

    site: str
    kind: Kind
    part: BytePart


@dataclass(frozen=True)
class StackExchange:
    """Dumps of Stack Exchange sites, Stack Overflow among them, as archive.org has them.

    Questions, answers and comments become sentences, without code blocks and displayed formulas. Of many sites, one
    data set is made: a client is a user of one site, "stackoverflow/22656".
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Published archives, SITE.stackexchange.com.7z, which are extracted beside the store while they are imported. Or
    files SITE.Posts.xml and SITE.Comments.xml, also compressed (.gz, .bz2 or .xz). Or folders of these. Or a folder
    with a folder for each site, which holds Posts.xml and Comments.xml."""
    split: Literal["user", "stackoverflow"] = "user"
    """How text is split. user: 80/10/10 by users. stackoverflow: as the published Stack Overflow data. Its heldout
    split has the users whose id is a multiple of 10. Others' text is in train before 2018 (UTC), and in test from then
    on. Rows without a date are left out and counted."""
    comments: bool = True
    """Read comments, too, not only posts (the published Stack Overflow data has posts only)."""

    words_are_separated = False

    def files(self) -> list[Path]:
        return list(dict.fromkeys(dump.path for dump in self._dumps()))

    def open(self, workspace: Path, progress: Progress) -> Reading:
        dumps = self._dumps()
        total = sum(dump.size for dump in dumps)
        return Reading("bytes", total, dump_parts(dumps, workspace), functools.partial(read_text, self))

    def _dumps(self) -> list[Dump]:
        kinds: tuple[Kind, ...] = ("posts", "comments") if self.comments else ("posts",)
        return find_dumps(self.paths, kinds)


def dump_parts(dumps: Iterable[Dump], workspace: Path, part_bytes: int = PART_BYTES) -> Iterator[Part]:
    """Cut dumps, those of one archive together, into parts of about some size, with a `DumpPart` as content.

    Archives are extracted into the workspace one after another, each for as long as it is read.
    """
    for path, group in itertools.groupby(dumps, key=lambda dump: dump.path):
        members = list(group)
        if members[0].member is None:
            yield from _labelled(members[0], byte_parts(path, last_row_start, part_bytes))
        else:
            yield from _archive_parts(path, members, workspace / f"extracted-{path.name}", part_bytes)


def _archive_parts(path: Path, dumps: list[Dump], folder: Path, part_bytes: int) -> Iterator[Part]:
    from fedlm.simulations.data.sources.stackexchange.seven_zip import extracted

    names = [str(dump.member) for dump in dumps]
    with extracted(path, names, folder):
        for dump, name in zip(dumps, names, strict=True):
            with (folder / name).open("rb") as stream:
                parts = stream_parts(
                    path / name,
                    stream,
                    last_row_start,
                    keep_data=True,
                    position=stream.tell,
                    part_bytes=part_bytes,
                )
                yield from _labelled(dump, parts)


def _labelled(dump: Dump, parts: Iterator[Part]) -> Iterator[Part]:
    for part in parts:
        yield Part(DumpPart(dump.site, dump.kind, part.content), part.size)


def read_text(settings: StackExchange, content: DumpPart, skipped: SkippedCounts) -> Iterator[ClientText]:
    """Yield the texts of some rows; raises DataError where the file is no dump or is cut off, or a row is malformed."""
    for line, row in read_rows(content.part, content.kind, skipped):
        place = f"{content.part.path}, line {line}"
        text = _row_text(settings, content, row, place)
        if isinstance(text, ClientText):
            yield text
        else:
            skipped.add(text, place=place)


def _row_text(settings: StackExchange, content: DumpPart, row: Mapping[str, str], place: str) -> ClientText | str:
    """Return a row's text, or the reason why it has none."""
    from fedlm.simulations.data.sources.stackexchange.html_text import comment_paragraphs, html_paragraphs

    posts = content.kind == "posts"
    if posts and row.get("PostTypeId") not in _QUESTION_OR_ANSWER:
        return "post that is neither question nor answer"
    user = row.get("OwnerUserId" if posts else "UserId")
    if not user:
        return "row without a user"
    if user == _COMMUNITY_USER:
        return "row of the Community user"
    if not (user.isascii() and user.isdecimal()):
        raise DataError(f"{place}: found {user!r} as the id of a user, expected a whole number.")
    created = _milliseconds(row.get("CreationDate", ""))
    if created is None and settings.split == "stackoverflow":
        return "row without a date of creation"
    paragraphs = html_paragraphs(row.get("Body", "")) if posts else comment_paragraphs(row.get("Text", ""))
    sentences = [sentence for paragraph in paragraphs for sentence in split_sentences(paragraph)]
    if not sentences:
        return "empty text"
    split = _split(settings, user, created) if created is not None else None
    return ClientText(f"{content.site}/{user}", sentences, split, created or 0)


def _split(settings: StackExchange, user: str, created: int) -> str | None:
    if settings.split == "user":
        return None
    if user.endswith("0"):
        return "heldout"
    return "train" if created < _TEST_BEGINS else "test"


def _milliseconds(text: str) -> int | None:
    """Return a time, in UTC where it says nothing else, as milliseconds since 1970; None where it is none."""
    try:
        time = datetime.fromisoformat(text)
        return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        return None
