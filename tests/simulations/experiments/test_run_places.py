"""A run that was begun with relative paths is read from wherever one is."""

import json
import shutil

import pytest

import fedlm
from fedlm.fl_core.errors import DataError
from fedlm.fl_core.runs.statements.publishing import publish
from fedlm.models.families.cifg import CifgConfig, cifg
from fedlm.models.model_files import describe_model
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from fedlm.simulations.weights.exporting import read_run

SMALL = {"model": "mine.json", "data": "store", "rounds": 1, "cohort_size": 2, "length": 4}


@pytest.fixture
def begun(tmp_path, small_store, monkeypatch):
    """A folder with a run, its data, and the description of its model, seen from another folder."""
    shutil.copytree(small_store, tmp_path / "home" / "store")
    description = describe_model(cifg, CifgConfig(embedding=4, hidden=4))
    (tmp_path / "home" / "mine.json").write_text(json.dumps(description))
    monkeypatch.chdir(tmp_path / "home")
    run = fedlm.simulate(out="run", **SMALL)
    assert run.summary["experiment"]["data"] == "store"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "home"


@pytest.mark.long
def test_data_and_model_are_found_from_another_folder(begun, tmp_path, monkeypatch):
    opened = fedlm.open_model("../home/run")
    assert opened.store.path == begun / "store"
    assert read_run(begun / "run").tokenizer.fingerprint == opened.tokenizer.fingerprint

    def fingerprint_of(path):
        return Tokenizer.load(path).fingerprint

    assert not publish(begun / "run", tmp_path / "published", fingerprint_of).tokenizer.startswith("not published: its")
    assert not [path for path in (tmp_path / "published").iterdir() if str(tmp_path).encode() in path.read_bytes()]
    here = {"model": "../home/mine.json", "data": "../home/store", "init_from": begun / "run"}
    further = fedlm.simulate(out="further", **SMALL | here)
    assert further.summary["initial_parameters"]
    moved = begun.rename(tmp_path / "moved")
    with pytest.raises(DataError, match=r"store: there is no such folder, and the data set of the run in .* was there"):
        fedlm.open_model(moved / "run")
    monkeypatch.chdir(moved)
    assert fedlm.open_model("run").store.path.absolute() == moved / "store"
