"""What other frameworks read of our exports, and what we import of theirs."""

import json

import pytest

from fedlm.simulations.data.splits import SPLITS
from fedlm.simulations.data.store.token_store import TokenStore

pytestmark = pytest.mark.reference

FEDJAX_FILES = {
    "train": "small_store_train.sqlite",
    "heldout": "small_store_held_out.sqlite",
    "test": "small_store_test.sqlite",
}


@pytest.fixture
def export(store, fedlm_here):
    """Export the store, and return the lines of Python that the command prints."""

    def export(form, out):
        result = fedlm_here("data", "export", store.path, "--format", form, "--out", out)
        assert result.returncode == 0, result.stderr
        return "".join(line.strip() + "\n" for line in result.stdout.partition("Python:")[2].splitlines())

    return export


def texts_of(store):
    """Return {split: {client id: [text, ..]}} of a store."""
    decode = store.tokenizer.decode
    return {
        split: {
            client_id: [decode(client.example(index)) for index in range(client.num_examples)]
            for client_id, client in clients_of(store, split).items()
        }
        for split in SPLITS
    }


def clients_of(store, split):
    return {id_: store.split(split).client(index) for index, id_ in enumerate(store.split(split).client_ids)}


@pytest.fixture
def store(small_store):
    return TokenStore.open(small_store)


def test_tff_reads_the_text(store, export, tmp_path, reference_python):
    export("tff", tmp_path / "export")
    read = reference_python("read_tff.py", tmp_path / "export")
    assert read == {
        split: {id_: [{"tokens": text} for text in texts] for id_, texts in clients.items()}
        for split, clients in texts_of(store).items()
    }


def read_fedjax(reference_python, folder):
    assert {path.name for path in folder.iterdir()} == set(FEDJAX_FILES.values())
    return dict(
        zip(SPLITS, reference_python("read_fedjax.py", *(folder / FEDJAX_FILES[s] for s in SPLITS)), strict=True)
    )


def test_fedjax_reads_the_text(store, export, tmp_path, reference_python):
    export("fedjax", tmp_path / "export")
    read = read_fedjax(reference_python, tmp_path / "export")
    for split, clients in texts_of(store).items():
        assert read[split] == [
            [id_, len(texts), {"tokens": {"dtype": "object", "shape": [len(texts)], "values": texts}}]
            for id_, texts in clients.items()
        ]


def test_the_lines_that_the_command_prints_run(export, tmp_path, reference_python):
    files = []
    for form in ("tff", "fedjax"):
        files.append(tmp_path / f"{form}.py")
        files[-1].write_text(export(form, tmp_path / form))
    tff, fedjax = reference_python("run_lines.py", *files)
    assert "ClientData" in tff["train"]
    assert fedjax["client"] == "ClientDataset"


@pytest.mark.parametrize("framework", ["tff", "fedjax"])
def test_files_that_the_framework_wrote_are_imported(framework, store, tmp_path, reference_python, fedlm_here):
    """Text to words with spaces between them, as both publish it, then through their writer and our import."""
    clients = {
        split: {id_: [text.replace(".", "") for text in texts] for id_, texts in of_split.items()}
        for split, of_split in texts_of(store).items()
    }
    (tmp_path / "clients.json").write_text(json.dumps(clients))
    written = tmp_path / "written"
    written.mkdir()
    target = written / "stackoverflow.sqlite" if framework == "tff" else written
    assert reference_python(f"write_{framework}.py", target, tmp_path / "clients.json") == {"clients": 120}
    files = sorted(written.glob("*.sqlite"))
    assert len(files) == (1 if framework == "tff" else 3)
    words = [f"stackoverflow-{framework}", *files, "--out", tmp_path / "store", "--workers", 1]
    assert fedlm_here("data", "import", *words).returncode == 0
    imported = TokenStore.open(tmp_path / "store")
    assert texts_of(imported) == clients
