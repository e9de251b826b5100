"""Stack Exchange dumps in 7z archives are read as files are."""

import tracemalloc
from contextlib import closing

import py7zr
import pytest

from fedlm.simulations.data.client_text import SkippedCounts
from fedlm.simulations.data.sources.stackexchange.files import find_dumps
from fedlm.simulations.data.sources.stackexchange.source import StackExchange, dump_parts, read_text
from tests.simulations.data.sources.stackexchange_dumps import archive, comment, dump, post, read, refused, write


@pytest.mark.parametrize("part_bytes", [None, 10_000])
def test_archives_give_the_same_as_files(tmp_path, part_bytes):
    posts = dump(*(post(str(i), f"<p>Number {i * 7919 % 1000}</p>") for i in range(1, 500)))
    comments = dump(*(comment(str(i)) for i in range(1, 300)), root="comments")
    for kind, content in (("Comments", comments), ("Posts", posts)):
        write(tmp_path / f"s/{kind}.xml", content)
    path = archive(tmp_path / "s.7z", Badges="x" * 100_000, Comments=comments, PostHistory="y" * 100_000, Posts=posts)
    reading = StackExchange(paths=(path,)).open(tmp_path, lambda *call: None)
    assert (reading.unit, reading.total) == ("bytes", len(posts.encode()) + len(comments.encode()))
    assert sum(part.size for part in reading.parts) == reading.total
    texts, skipped = read(tmp_path / "s", part_bytes=part_bytes)
    assert len(texts) == 798
    from_archive, skipped_in_archive = read(path, part_bytes=part_bytes)
    assert from_archive == texts
    assert skipped_in_archive.as_dict() == skipped.as_dict()
    assert [text.client_id for text in read(path, comments=False)[0]][:1] == ["s/1"]


def stored(path, **members):
    """Write an archive that compresses nothing."""
    with py7zr.SevenZipFile(path, "w", filters=[{"id": py7zr.FILTER_COPY}]) as file:
        for name, content in members.items():
            file.writestr(content, f"{name}.xml")
    return path


def test_what_is_extracted_is_gone_when_reading_stops(tmp_path):
    rows = dump(*(post(str(i)) for i in range(1, 1500)))
    path = archive(tmp_path / "s.7z", Posts=rows, Users=rows, Comments=dump(root="comments"))
    (tmp_path / "work" / "extracted-s.7z").mkdir(parents=True)
    (tmp_path / "work" / "extracted-s.7z" / "left").touch()
    with closing(dump_parts(find_dumps([path], ("posts", "comments")), tmp_path / "work", 5000)) as parts:
        next(parts)
        found = {one.name for one in (tmp_path / "work" / "extracted-s.7z").iterdir()}
        assert found == {"Posts.xml", "Comments.xml"}
    assert not list((tmp_path / "work").iterdir())


def test_damaged_archives_are_refused(tmp_path):
    path = archive(tmp_path / "s.7z", Posts=dump(*(post(str(i * i), f"<p>{i**9}</p>") for i in range(1, 2000))))
    whole = path.read_bytes()
    flipped = bytes([*whole[:40], whole[40] ^ 255, *whole[41:]])
    for content in (b"", b"7z\xbc\xaf\x27\x1c", b"text", whole[:-10], whole[: len(whole) // 2], flipped):
        message = refused(write(path, content))
        assert message.startswith(f"{path}: is damaged, cut off or not a 7z archive (")
    middle = len(whole) // 2
    assert str(path) in refused(write(path, whole[:middle] + b"\0" * 50 + whole[middle + 50 :]))
    whole = stored(path, Posts=dump(post())).read_bytes()
    assert "wrong checksum of Posts.xml" in refused(write(path, whole.replace(b"Some words", b"Some wards")))
    for names_too in (False, True):
        with py7zr.SevenZipFile(path, "w", password="secret", header_encryption=names_too) as file:
            file.writestr(dump(post()), "Posts.xml")
        assert refused(path).startswith(f"{path}: is protected by a password")


@pytest.mark.long
@pytest.mark.parametrize("name", ["s.Posts.xml", "s.7z"])
def test_memory_is_bounded(tmp_path, name):
    content = dump(*(post(str(i), f"<p>{'Words. ' * 200}</p>") for i in range(1, 15_000)))
    path = stored(tmp_path / name, Posts=content) if name == "s.7z" else write(tmp_path / name, content)
    tracemalloc.start()
    try:
        for number, part in enumerate(dump_parts(find_dumps([path], ("posts",)), tmp_path, 100_000)):
            if number == 5:
                tracemalloc.reset_peak()
            if number < 3:
                assert list(read_text(StackExchange(paths=(path,)), part.content, SkippedCounts()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert number > 50
    assert peak < path.stat().st_size / 2
