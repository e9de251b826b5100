import bz2
import gzip
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.sources.stackexchange.files import Dump, find_dumps
from fedlm.simulations.data.sources.stackexchange.source import StackExchange, dump_parts, read_text
from fedlm.simulations.data.sources.tables import byte_parts
from tests.simulations.data.sources.stackexchange_dumps import (
    DAY,
    archive,
    comment,
    dump,
    post,
    read,
    refused,
    row,
    write,
)

ENTITY = '<!DOCTYPE posts [<!ENTITY e "aaa">]>'
NEITHER = "post that is neither question nor answer"


def test_posts_and_comments_become_texts(tmp_path):
    title = {"Title": "A title", "Tags": "<tag>"}
    posts = dump(post(body="<p>One. Two.</p><pre>x</pre><p>Three</p>", **title), post("12", "<p>Yes.</p>", "2"))
    write(tmp_path / "cooking.stackexchange.com/Posts.xml", posts)
    comments = write(tmp_path / "cooking.Comments.xml", dump(comment(text="See `x`: [y](http://z)."), root="comments"))
    texts, skipped = read(tmp_path)
    assert texts == [
        ClientText("cooking/7", ["See x: y."], None, DAY + 200),
        ClientText("cooking/7", ["One.", "Two.", "Three"], None, DAY + 123),
        ClientText("cooking/12", ["Yes."], None, DAY + 123),
    ]
    assert skipped.as_dict() == {}
    texts, _ = read(tmp_path, comments=False)
    assert [text.client_id for text in texts] == ["cooking/7", "cooking/12"]
    assert "found no posts to import" in refused(comments, comments=False)
    assert not StackExchange(paths=(tmp_path,)).words_are_separated


def test_what_is_left_out_is_counted(tmp_path):
    rows = [post(kind=kind) for kind in ("3", "4", "5", "17")] + [row(Id="1", OwnerUserId="7", Body="no type")]
    rows += [row(Id="1", PostTypeId="2", Body="words"), post(""), post("-1"), post(body="<pre>code</pre>")]
    rows += [row(Id="1", PostTypeId="2", OwnerUserId="7"), post()]
    path = write(tmp_path / "s.Posts.xml", dump(*rows))
    path.write_bytes(path.read_bytes().replace(b'Body="words"', b'Body="w\xc3"'))
    texts, skipped = read(path)
    assert len(texts) == 1
    assert skipped.as_dict() == {
        NEITHER: 5,
        "bytes that are not UTF-8": 1,
        "empty text": 2,
        "row of the Community user": 1,
        "row without a user": 1,
    }
    assert skipped.first_places() == {
        NEITHER: f"{path}, line 3",
        "bytes that are not UTF-8": f"{path}, line 8",
        "empty text": f"{path}, line 11",
        "row of the Community user": f"{path}, line 10",
        "row without a user": f"{path}, line 9",
    }


def test_stack_overflow_is_split_as_published(tmp_path):
    dates = ("2017-12-31T23:59:59.999", "2018-01-01T00:00:00.000", "2018-01-01T00:30:00+01:00", "yesterday", "")
    path = write(tmp_path / "s.Posts.xml", dump(*(post(user, date=date) for user in ("10", "11") for date in dates)))
    texts, skipped = read(path, split="stackoverflow")
    assert [(text.client_id, text.split) for text in texts] == [("s/10", "heldout")] * 3 + [
        ("s/11", "train"),
        ("s/11", "test"),
        ("s/11", "train"),
    ]
    assert skipped.as_dict() == {"row without a date of creation": 4}
    texts, _ = read(path)
    assert [text.order for text in texts[3:5]] == [0, 0], "without a usable date a row is kept, as the first"
    assert {text.split for text in texts} == {None}


@pytest.mark.parametrize(
    ("name", "client"),
    [
        ("a/Posts.xml", "a/7"),
        ("a.b.com/posts.xml", "a.b/7"),
        ("a/b.stackexchange.com.Posts.xml", "b/7"),
        ("stackoverflow.com-Posts.xml", "stackoverflow/7"),
        ("history.meta.stackexchange.com.Posts.xml", "history.meta/7"),
        ("mathoverflow.net.Posts.xml", "mathoverflow.net/7"),
        ("b.Posts.xml.gz", "b/7"),
        ("b/Posts.xml.bz2", "b/7"),
        ("b.Posts.xml.xz", "b/7"),
    ],
)
def test_sites_are_known_by_file_or_folder(tmp_path, name, client):
    compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}.get(Path(name).suffix, bytes)
    path = write(tmp_path / name, compress(dump(post()).encode()))
    for place in (path, path.parent):
        assert [text.client_id for text in read(place)[0]] == [client]


def test_files_that_are_no_dumps_are_not_read(tmp_path, monkeypatch):
    for name in ("Users.xml", "readme.txt", "stackoverflow.com-Badges.7z", ".hidden/Posts.xml", "a/b/Posts.xml"):
        write(tmp_path / "data" / name, "x")
    assert "found neither posts nor comments in this folder" in refused(tmp_path / "data")
    assert "judging by the name, expected SITE.Posts.xml" in refused(tmp_path / "data/Users.xml")
    assert "found nothing" in refused(tmp_path / "absent.xml")
    assert "no file is named" in refused()
    other = archive(tmp_path / "data/other.7z", Users=dump(root="users"))
    assert "found neither posts" in refused(other)
    posts = write(tmp_path / "data/a.Posts.xml", dump(post()))
    assert StackExchange(paths=(tmp_path / "data",)).files() == [posts]
    monkeypatch.chdir(tmp_path / "data/a")
    write(Path("Posts.xml"), dump(post()))
    assert find_dumps([Path("Posts.xml")], ("posts",))[0].site == "a"


def test_files_that_are_too_many_too_long_or_gone_are_refused(tmp_path, monkeypatch):
    one = write(tmp_path / "x/s.Posts.xml", dump(post()))
    two = archive(tmp_path / "y/s.stackexchange.com.7z", Posts=dump(post()))
    assert refused(one, two).startswith(f"{one} and {two}/Posts.xml: both are the posts of 's', expected one")
    assert "both are the posts" in refused(one, one)
    content = next(dump_parts(find_dumps([one], ("posts",)), tmp_path)).content
    one.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        list(read_text(StackExchange(paths=(one,)), content, SkippedCounts()))
    for path, member in ((Path("absent.7z"), "Posts.xml"), (one, None)):
        with pytest.raises(DataError, match="cannot be read"):
            list(dump_parts([Dump(path, member, 1, "s", "posts")], tmp_path))
    monkeypatch.setattr(byte_parts, "MAX_RECORD_BYTES", 1 << 20)
    write(one, dump(post(), post(body="x" * (2 << 20)), post()))
    with pytest.raises(DataError, match=r"line 4 \(byte \d+\) begins a record of more than 1 MiB"):
        read(one, part_bytes=100_000)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "found an empty file"),
        (dump(post())[:-9], r"line 3: the file is cut off: it ends with .*words.*expected </posts>"),
        (dump()[:-12], "the file is cut off"),
        (dump() + "x", "found no XML"),
        (dump(post(), root="comments"), "found <comments>, expected <posts>"),
        (dump("<post />"), "found <post> in <posts>, expected <row"),
        (b"PK\3\4\0\0\1\2", r"found no XML .*'PK"),
        (post(), "found no XML element before the first row|found a row without an element"),
        (dump(post()).replace("utf-8", "iso-8859-1"), "is in iso-8859-1, expected UTF-8"),
        (dump(post(body="&e;")).replace("<posts>", ENTITY + "<posts>"), "entity declarations are refused"),
        (dump(post()).replace("<posts>", "<!DOCTYPE posts []><posts>"), "entity declarations are refused"),
        (dump(post(), post().replace("words", "a & b"), post()), r"line 4: found a malformed row \(not well-formed"),
        (dump(post(), post().replace("words", "&e;")), r"line 4: found a malformed row \(undefined entity\): '<row Id"),
        (dump(post(), "</posts><posts>", post()), "line 3: found a malformed row"),
        (dump(post().replace(" Body", "\n Body"), post("7a"), post()), "line 5: found '7a' as the id of a user"),
    ],
)
def test_bad_files_are_refused(tmp_path, content, message):
    path = write(tmp_path / "s.Posts.xml", content)
    with pytest.raises(DataError, match=message) as error:
        read(path)
    assert str(error.value).startswith(str(path))
    with pytest.raises(DataError):
        read(path, part_bytes=50)


def test_dumps_of_odd_forms_are_read(tmp_path):
    for content in (
        *("<posts />", "<posts></posts>", dump()),
        "<?xml version='1.0'?><!DOCTYPE posts SYSTEM 'p.dtd'><posts/>\n",
    ):
        texts, skipped = read(write(tmp_path / "s.Posts.xml", content))
        assert (texts, skipped.as_dict()) == ([], {})
    references = "&#0;&#x1F;&#xFFFE;&#xD800;&#x00000008;&#99999999999999999999;&#x110000;"
    forbidden = dump(post(body="A|B&#x41;&#10;C.")).replace("|", references)
    assert read(write(tmp_path / "s.Posts.xml", forbidden))[0][0].sentences == ["ABA C."]
    in_a_line = dump(post(), post("8"), post("9")).replace("\n", "").replace("<row Id", "<row\tId")
    path = write(tmp_path / "s.Posts.xml", in_a_line)
    for part_bytes in (7, 1000):
        assert [text.client_id for text in read(path, part_bytes=part_bytes)[0]] == ["s/7", "s/8", "s/9"]


ROWS = st.builds(
    post,
    user=st.sampled_from(["1", "20", "-1", ""]),
    body=st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"]), max_size=60),
    kind=st.sampled_from(["1", "2", "4"]),
    date=st.sampled_from(["2017-01-01T00:00:00", "2019-01-01", "?"]),
)


@pytest.mark.long
@given(
    rows=st.lists(ROWS, max_size=12),
    part_bytes=st.integers(1, 400),
    broken=st.sampled_from([b"words", b"\xff", b"\xc3\xa9"]),
)
def test_any_cut_gives_the_same_texts(tmp_path_factory, rows, part_bytes, broken):
    content = dump(*rows, post()).encode().replace(b"words", broken)
    path = write(tmp_path_factory.getbasetemp() / "cut/s.Posts.xml", content)
    whole, skipped = read(path, split="stackoverflow")
    cut, cut_skipped = read(path, part_bytes=part_bytes, split="stackoverflow")
    assert cut == whole
    assert cut_skipped.as_dict() == skipped.as_dict()
    assert cut_skipped.first_places() == skipped.first_places()
