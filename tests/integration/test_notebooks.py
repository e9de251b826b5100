"""The notebooks are committed as they were run, and run here."""

import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[2] / "examples"
# The page on own algorithms has what the first of these has.
THOROUGH = ("own_client_algorithm.ipynb", "compare_architectures.ipynb", "private_fine_tuning.ipynb")
NOTEBOOKS = ["private_training.ipynb", *THOROUGH]


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_shows_what_a_run_from_its_beginning_gave(name):
    assert {path.name for path in EXAMPLES.glob("*.ipynb")} == {*NOTEBOOKS}
    notebook = nbformat.read(EXAMPLES / name, 4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    kinds = {output.output_type for output in outputs(notebook)}
    assert "error" not in kinds
    assert any("image/png" in output.get("data", {}) for output in outputs(notebook)), "there is a plot"
    warnings = [output.text for output in outputs(notebook) if output.get("name") == "stderr"]
    assert not warnings


def test_the_private_notebook_states_what_it_promises():
    notebook = nbformat.read(EXAMPLES / "private_training.ipynb", 4)
    said = "".join(output.get("text", "") for output in outputs(notebook))
    for part in ("epsilon = 0.5, delta = 1e-05)-differential privacy", "unit: client", "adjacency:", "NOT PRIVATE"):
        assert part in said
    assert "VOCABULARY NOT COVERED" not in said
    source = "".join(cell.source for cell in notebook.cells)
    assert "noise_seed" not in source, "its noise comes from the operating system's entropy"


def test_the_notebook_on_fine_tuning_keeps_promises_apart():
    notebook = nbformat.read(EXAMPLES / "private_fine_tuning.ipynb", 4)
    said = " ".join("".join(output.get("text", "") for output in outputs(notebook)).split())
    for part in (
        "(epsilon = 8, delta = 1e-05)-differential privacy",
        "unit: example: one prompt with its completion (training reads at most 20 tokens)",
        "assumed: the first parameters were made from public data alone",
        "the vocabulary is public",
        "without privacy: NOT PRIVATE",
    ):
        assert part in said
    right = dict(
        re.findall(r"(as it was|without privacy|epsilon = \d): +[\d.]+ nats a token, +(\d+) of 100 answers", said)
    )
    assert int(right["as it was"]) < int(right["epsilon = 2"]) <= int(right["epsilon = 8"])
    assert int(right["without privacy"]) > 90
    assert "noise_seed" not in "".join(cell.source for cell in notebook.cells)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.thorough if name in THOROUGH else ()) for name in NOTEBOOKS],
)
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    notebook = nbformat.read(EXAMPLES / name, 4)
    expected = [(cell.id, len(cell.outputs)) for cell in notebook.cells if cell.cell_type == "code"]
    NotebookClient(
        notebook, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert [(cell.id, len(cell.outputs)) for cell in notebook.cells if cell.cell_type == "code"] == expected
