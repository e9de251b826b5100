import json

import pytest

from fedlm.clients.example_store import ExampleStore, Retention
from fedlm.fl_core.errors import ConfigurationError, DataError

DAY = 86_400.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mine.jsonl"


def test_what_is_appended_is_read_back_in_order(path):
    store = ExampleStore(path)
    assert store.texts() == []
    before = store.version()
    store.append(["one", "zwei\nlines", "三"])
    store.append(["four"])
    assert store.texts() == ExampleStore(path).texts() == ["one", "zwei\nlines", "三", "four"]
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


def test_lines_without_a_time_are_new(path):
    path.write_text('{"text": "given"}\n\n{"text": "old", "added": 0}\n')
    assert ExampleStore(path, Retention(max_age_days=1)).texts() == ["given"]


@pytest.mark.parametrize(
    "line", ["text", '"text"', '{"words": 1}', '{"text": 1}', '{"text": "a", "added": "now"}', "{"]
)
def test_a_line_that_is_no_example_is_named(path, line):
    path.write_text(json.dumps({"text": "good"}) + "\n" + line + "\n")
    with pytest.raises(DataError, match="line 2"):
        ExampleStore(path).texts()


@pytest.mark.parametrize("limits", [{"max_examples": 0}, {"max_age_days": -1}])
def test_retention_of_nothing_is_refused(limits):
    with pytest.raises(ConfigurationError):
        Retention(**limits)


def test_a_line_that_was_cut_off_does_not_swallow_the_next(path):
    path.write_text('{"text": "whole"}\n{"text": "cut o')
    ExampleStore(path).append(["next"])
    assert path.read_text().splitlines()[2].startswith('{"text": "next"')
    with pytest.raises(DataError, match="line 2"):
        ExampleStore(path).texts()
