import json

import pytest

from fedlm.fedlm_client.errors import ClientError
from fedlm.fedlm_client.text.example_store import ExampleStore, Retention

DAY = 86_400.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mine.jsonl"


def test_what_is_appended_is_read_back_in_order(path):
    store = ExampleStore(path)
    store.append([])
    assert store.texts() == []
    before = store.version()
    texts = ["one", "zwei\nlines", "三", "a\u2028b\u2029c\u0085d\x0b\x1c", "four"]
    store.append(texts[:-1])
    store.append(texts[-1:])
    assert store.texts() == ExampleStore(path).texts() == texts
    assert store.version() != before


def test_retention_forgets_on_the_disk(path):
    store = ExampleStore(path, Retention(max_examples=3, max_age_days=2))
    store.append(["a", "b"], now=0.0)
    store.append(["c", "d"], now=1 * DAY)
    assert store.texts(now=1 * DAY) == ["b", "c", "d"]
    assert '"a"' not in path.read_text()
    assert store.texts(now=2.5 * DAY) == ["c", "d"]
    assert store.forget(now=2.5 * DAY) == 1
    assert '"b"' not in path.read_text()


def test_deletion_is_on_the_disk(path):
    store = ExampleStore(path)
    store.append(["keep", "drop this", "drop that"])
    assert store.delete(lambda text: text.startswith("drop")) == 2
    assert store.texts() == ["keep"]
    assert "drop" not in path.read_text()
    assert store.delete() == 1
    assert store.texts() == []


def test_lines_without_a_time_are_as_old_as_those_before_them(path):
    lines = [{"text": "given"}, {"text": "old", "added": 0}, {"text": "old too"}, {"text": "new", "added": 2 * DAY}]
    lines.append({"text": "new too", "kind": "note"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    store = ExampleStore(path, Retention(max_age_days=1))
    assert store.texts(now=0) == ["given", "old", "old too", "new", "new too"]
    assert store.texts(now=2.5 * DAY) == ["given", "new", "new too"]
    # What is forgotten does not make others younger.
    assert store.delete(lambda text: text == "new") == 1
    assert store.texts(now=2.5 * DAY) == ["given", "new too"]
    assert store.texts(now=3.5 * DAY) == ["given"]
    assert '"kind": "note"' in path.read_text()


def test_all_else_of_a_line_stays_as_it_was_written(path):
    kept = '{"id": 12345678901234567890.12345678901234567890, "far": 1e400,  "text": "\\u00e4"}'
    path.write_text(f'\ufeff{{"text": "first", "added": 5}}\n  {kept}\t\r{{"text": "last", "added": 1e9}}\n')
    store = ExampleStore(path, Retention(max_examples=2))
    assert store.forget() == 1
    assert store.texts() == ["ä", "last"]
    assert path.read_text() == f'{{"added": 5, {kept[1:]}\n{{"text": "last", "added": 1e9}}\n'


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ClientError, match=r"nowhere.*cannot be written"):
        ExampleStore(tmp_path / "nowhere" / "mine.jsonl").append(["a"])


def test_a_file_that_is_not_there_is_no_empty_store(path):
    store = ExampleStore(path, Retention(max_age_days=1))
    for read in (store.texts, store.version, store.forget, store.delete, lambda: store.examples("texts")):
        with pytest.raises(ClientError, match="cannot be read"):
            read()
    store.append(["a"])
    assert store.texts() == ["a"]


@pytest.mark.parametrize("now", [float("nan"), float("inf"), -1.0, 1.7e12, True])
def test_a_time_that_is_none_is_not_written(path, now):
    with pytest.raises(ClientError, match="seconds since 1970"):
        ExampleStore(path).append(["a"], now=now)
    assert not path.exists()


def test_half_a_surrogate_is_refused_when_it_is_added_and_no_example_when_it_is_found(path):
    store = ExampleStore(path)
    store.append(["first"])
    with pytest.raises(ClientError, match="text 2 to add has half of a surrogate pair"):
        store.append(["good", "cut \ud83d"])
    with path.open("a") as file:
        file.write('{"text": "cut \\ud83d"}\n{"text": "last"}\n')
    assert store.examples("texts") == ["first", "last"]
    assert store.delete(lambda text: text == "last") == 1
    assert store.texts() == ["first", "cut \ud83d"]


def test_a_line_that_was_cut_off_does_not_swallow_the_next(path):
    path.write_text('{"text": "whole"}\n{"text": "cut o')
    ExampleStore(path).append(["next"])
    assert path.read_text().splitlines()[2].startswith('{"text": "next"')
    with pytest.raises(ClientError, match="line 2"):
        ExampleStore(path).texts()
