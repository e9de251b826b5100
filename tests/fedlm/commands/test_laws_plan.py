"""`fedlm laws plan`, as it is typed, and the training that it writes out."""

import dataclasses
import json
import tomllib
from pathlib import Path

import pytest

from fedlm.commands.cli import main
from fedlm.simulations.laws import laws_file
from fedlm.simulations.laws.laws_file import Laws, read_laws, write_laws
from tests.support.synthetic_laws import surface_of

TASK = {"clip_norm": 1.0, "schedule": "exponential", "final_rate": 0.1, "warmup_steps": 32, "packing": "packed"}
MODELS = {"transformer_2x32": 90_000, "transformer_2x64": 250_000}


@pytest.fixture(scope="module")
def laws(tmp_path_factory):
    path = tmp_path_factory.mktemp("laws") / "laws.json"
    surface = surface_of(MODELS, steps=[2, 4, 8, 16], batch_size=8, length=8, measured_steps=16.0)
    write_laws(Laws(surface=surface, task=TASK), path)
    return str(path)


def planned(laws, *more, capsys):
    status = main(["laws", "plan", "--laws", laws, *more])
    return status, capsys.readouterr()


@pytest.mark.long
def test_a_plan_is_written_out_and_reaches_its_epsilon(laws, small_store, tmp_path, capsys, fedlm_here):
    file = tmp_path / "planned.toml"
    wanted = ("--data", str(small_store), "--epsilon", "8", "--compute", "1e9", "--delta", "1e-4", "--json")
    status, out = planned(laws, *wanted, "--write-config", str(file), capsys=capsys)
    assert status == 0, out.err
    found = json.loads(out.out)["training"]
    assert found["guarantee"]["epsilon"] <= 8
    assert found["compute"] == pytest.approx(1e9, rel=0.3)
    settings = tomllib.loads(file.read_text())
    assert settings["epsilon"] == 8
    assert settings["final_learning_rate"] == pytest.approx(0.1 * settings["learning_rate"])
    run = tmp_path / "run"
    assert fedlm_here("pretrain", "--config", file, "--out", run).returncode == 0
    summary = json.loads((run / "summary.json").read_text())
    assert summary["parameters"] == found["parameters"]
    assert summary["noise_batch_ratio"] == pytest.approx(found["noise_batch_ratio"], rel=1e-6)
    assert summary["privacy_guarantee"]["epsilon"] <= 8


def test_a_plan_for_data_states_what_the_run_will(laws, small_store, tmp_path, capsys):
    file = tmp_path / "new" / "gepl\N{LATIN SMALL LETTER A WITH DIAERESIS}nt \N{GRINNING FACE}.toml"
    wanted = ("--data", str(small_store), "--epsilon", "8", "--compute", "1e9", "--delta", "0.01")
    status, out = planned(laws, *wanted, "--write-config", str(file), capsys=capsys)
    assert status == 0, out.err
    words = " ".join(out.out.split())
    assert "adjacency: add-or-remove" in words
    assert "independently with probability" in words
    assert "unit: example: one packed sequence of 8 tokens, in all steps" in words
    assert "The promise is per sequence, not per document or per user" in words
    assert "VOCABULARY NOT COVERED" in words
    assert "delta is 0.01, above one in" in words
    assert "at delta" in words
    model = tomllib.loads(file.read_text(encoding="utf-8"))["model"]
    assert model in MODELS or Path(model).is_file()
    status, out = planned(laws, *("--examples", "5000", "--epsilon", "inf", "--compute", "1e8"), capsys=capsys)
    assert status == 0, out.err
    assert "NOT PRIVATE" in out.out


@pytest.mark.long
def test_without_laws_those_that_come_with_the_package_count_and_are_named(laws, tmp_path, capsys, monkeypatch):
    words = ["laws", "plan", "--examples", "5000", "--epsilon", "8", "--compute", "1e9"]
    monkeypatch.setattr(laws_file, "SHIPPED_FILE", tmp_path / "none.json")
    assert main(words) == 2
    assert "this version comes with no laws" in capsys.readouterr().err
    read = read_laws(Path(laws))
    write_laws(
        dataclasses.replace(read, source={laws_file.ABOUT: "some trainings on some text"}), tmp_path / "laws.json"
    )
    monkeypatch.setattr(laws_file, "SHIPPED_FILE", tmp_path / "laws.json")
    assert main(words) == 0
    assert "by the laws that come with fedlm, of some trainings on some text" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["laws"]["about"] == "some trainings on some text"
    assert main(["laws", "plan", "--federated", "--epsilon", "8", "--people", "10", "--client-trainings", "10"]) == 2
    assert "give --laws with --federated" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--epsilon", "8", "--compute", "1e9"), "give --examples, or --data"),
        (("--examples", "5000", "--epsilon", "8", "--compute", "1e30"), "compute is 1e+30"),
        (("--examples", "5000", "--epsilon", "0.01", "--compute", "1e9"), "epsilon is 0.01"),
        (("--examples", "5000", "--epsilon", "8", "--compute", "1e9", "--write-config", "a.json"), "must end in .toml"),
        (("--examples", "5000", "--epsilon", "8", "--compute", "1e9", "--delta", "0"), "delta is 0.0"),
    ],
)
def test_what_cannot_be_planned_is_one_line(laws, options, message, capsys):
    status, out = planned(laws, *options, capsys=capsys)
    assert status == 2
    assert message in out.err
    assert len(out.err.splitlines()) == 1
