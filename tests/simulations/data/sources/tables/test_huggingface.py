import functools
import json

import pyarrow as pa
import pytest

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.sources.tables import arrow_tables
from fedlm.simulations.data.sources.tables.arrow_tables import row_parts
from fedlm.simulations.data.sources.tables.huggingface import HuggingFaceDataset
from tests.simulations.data.sources.hugging_face_files import save_dataset, save_dataset_dict
from tests.simulations.data.sources.source_reading import read

TABLE = pa.table(
    {
        "id": range(300),
        "user": [f"u{i % 7}" for i in range(300)],
        "text": [f"text {i} x{'x' * (i % 40)}" for i in range(300)],
        "part": ["train", "valid", "test"] * 100,
    }
)
ROWS = list(zip(TABLE["user"].to_pylist(), TABLE["text"].to_pylist(), strict=True))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "saved"


def found(folder, **settings):
    return [(text.client_id, *text.sentences) for text in read(HuggingFaceDataset(path=folder, **settings))[0]]


def test_splits_are_kept_by_their_names(folder):
    names = ["train", "validation", "valid", "dev", "heldout", "test"]
    save_dataset_dict(folder, {name: TABLE.slice(index, 1) for index, name in enumerate(names)})
    texts, _ = read(HuggingFaceDataset(path=folder))
    assert [text.split for text in texts] == ["train", *["heldout"] * 4, "test"]
    assert [(text.client_id, *text.sentences) for text in texts] == ROWS[:6]
    save_dataset(folder / "whole", TABLE, num_shards=3)
    texts, _ = read(HuggingFaceDataset(path=folder / "whole"))
    assert [(text.client_id, *text.sentences) for text in texts] == ROWS
    assert {text.split for text in texts} == {None}
    save_dataset(folder / "nothing", TABLE.slice(0, 0))
    assert found(folder / "nothing") == []


def test_other_splits_need_a_column_that_says_the_split(folder):
    save_dataset_dict(folder, {"train": TABLE.slice(0, 3), "unsupervised": TABLE.slice(3, 3)})
    message = r"found the splits 'train', 'unsupervised', expected only train, .* or name with split a column"
    with pytest.raises(DataError, match=message):
        HuggingFaceDataset(path=folder).files()
    texts, _ = read(HuggingFaceDataset(path=folder, split="part"))
    assert [text.split for text in texts] == ["train", "heldout", "test"] * 2


@pytest.mark.parametrize("part_bytes", [1, 500, 100_000])
@pytest.mark.parametrize(("batch_rows", "convert_rows"), [(1, 7), (60, 7), (60, 8192), (1000, 8192)])
def test_shards_are_cut_into_runs_of_rows(folder, monkeypatch, part_bytes, batch_rows, convert_rows):
    save_dataset(folder, TABLE, num_shards=2, batch_rows=batch_rows)
    monkeypatch.setattr(arrow_tables, "row_parts", functools.partial(row_parts, part_bytes=part_bytes))
    monkeypatch.setattr(arrow_tables, "BATCH_ROWS", convert_rows)
    assert found(folder) == ROWS
    reading = HuggingFaceDataset(path=folder).open(folder, print)
    parts = list(reading.parts)
    assert sum(part.size for part in parts) == reading.total
    rows = [part.size for part in parts]
    assert sum(rows) == 300
    assert max(rows) <= {1: 1, 500: 40, 100_000: 150}[part_bytes]
    assert len(parts) <= {1: 302, 500: 60, 100_000: 2}[part_bytes]


def test_places_count_from_the_start_of_the_shard(folder):
    texts = pa.array([b"Some text."] * 98 + [b"\xff", None]).view(pa.string())
    save_dataset(folder, pa.table({"user": ["a"] * 100, "text": texts}), batch_rows=30)
    found, skipped = read(HuggingFaceDataset(path=folder))
    assert [text.sentences for text in found] == [["Some text."]] * 98
    assert skipped.first_places()["bytes that are not UTF-8"].endswith("data-00000-of-00001.arrow, row 99")
    assert skipped.first_places()["empty text"].endswith("data-00000-of-00001.arrow, row 100")


def test_another_folder_is_named(folder):
    with pytest.raises(DataError, match=r"state.json: there is no such file, so .*saved is not a folder"):
        HuggingFaceDataset(path=folder).files()
    save_dataset_dict(folder, {"train": TABLE, "test": TABLE})
    with pytest.raises(DataError, match="is not a folder that `save_to_disk`"):
        HuggingFaceDataset(path=folder / "dataset_dict.json").files()
    (folder / "test" / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(DataError, match=r"data-00000-of-00001.arrow: found nothing"):
        HuggingFaceDataset(path=folder).files()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("{", "found no JSON"),
        ("[]", "names no files"),
        ('{"_data_files": []}', "names no files"),
        ('{"_data_files": [{}]}', "names no files"),
        (json.dumps({"_data_files": [{"filename": "a"}], "_indices_data_files": [{}]}), "is a selection of rows"),
        *(
            (json.dumps({"_data_files": [{"filename": name}]}), "expected a file or folder beside it")
            for name in ("../a", "/etc/passwd", "..", "a\0b")
        ),
    ],
)
def test_a_wrong_state_is_named(folder, state, message):
    save_dataset(folder, TABLE)
    (folder / "state.json").write_text(state)
    with pytest.raises(DataError, match=f"state.json: .*{message}"):
        HuggingFaceDataset(path=folder).files()


def test_a_damaged_shard_is_named(folder):
    save_dataset(folder, TABLE.select(["user", "text"]), batch_rows=100)
    path = folder / "data-00000-of-00001.arrow"
    whole = path.read_bytes()
    for data in (whole[:-8], whole[: len(whole) // 2], whole[:100], b"", b"user,text\n" * 9):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"of-00001.arrow: is (damaged or )?cut off"):
            found(folder)
    refused = 0
    for start in range(1000, len(whole) - 1000, 500):  # offsets, lengths or text
        path.write_bytes(whole[:start] + b"\xff" * 500 + whole[start + 500 :])
        try:
            texts, skipped = read(HuggingFaceDataset(path=folder))
        except DataError as error:
            refused += "of-00001.arrow: is damaged" in str(error)
        else:
            assert skipped.as_dict()["bytes that are not UTF-8"] == len(ROWS) - len(texts) > 0
    assert refused > 0
