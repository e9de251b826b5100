import json

import numpy as np
import pytest

from fedlm.commands.laws import COMMAND
from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.simulations.laws.laws_file import read_laws
from fedlm.simulations.laws.measuring.measurements import write_measurements
from tests.support.synthetic_laws import SMALL, Truth

MEASUREMENTS = SMALL.measure(Truth(batch_size=32))


@pytest.fixture
def results(tmp_path):
    write_measurements(MEASUREMENTS, tmp_path / "measurements.parquet")
    (tmp_path / "grid.json").write_text(json.dumps({"length": 32, "clip_norm": 1.0, "data": "/home/someone/store"}))
    return tmp_path


@pytest.mark.long
def test_a_folder_of_results_is_fitted(results, capsys):
    laws_file = results / "laws.json"
    command = ["fit", str(results), "--out", str(laws_file), "--method", "code", "--draws", "3"]
    assert COMMAND.main([*command, "--forms", "chinchilla"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Surface (code): 5 models of 130,000 to 3,280,000 parameters, to 1,024 steps measured and 65,536" in printed
    for row in ("cells", "largest model", "longest runs", "chinchilla: L = E + A / N^alpha + B / D^beta"):
        assert row in printed
    laws = read_laws(laws_file)
    assert laws.surface.method == "code"
    assert laws.surface.draws.shape == (3, 5, 38, 5)
    assert set(laws.held_out) == {"cells", "largest_model", "longest_runs"}
    assert f"{laws.held_out['cells']['mean_relative_error']:.2%}" in printed
    assert set(laws.forms) == {"chinchilla"}
    assert "largest_model" in laws.forms["chinchilla"].held_out
    assert laws.task == {"length": 32, "clip_norm": 1.0}
    assert laws.source["measurements"] == "measurements.parquet"
    assert laws.source["settings"]["method"] == "code"
    assert "someone" not in laws_file.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--forms", "chinchila"], "there is no form chinchila; choose from chinchilla,"),
        (["--batch-size", "7"], "there is no training with batch size 7; choose from 32"),
    ],
)
def test_mistakes_are_one_line(results, options, message):
    out = results / "laws.json"
    with pytest.raises((ConfigurationError, DataError), match=message):
        COMMAND.main(["fit", str(results), "--out", str(out), *options])
    assert not out.exists()
    with pytest.raises(ConfigurationError, match="which is a folder"):
        COMMAND.main(["fit", str(results), "--out", str(results)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "holds no settings of a grid"),
        ('{"models": 3}', "holds no settings of a grid"),
        ("{", "grid.json: cannot be read"),
        ('{"length": 512}', "of another grid than measurements.parquet: its length is 512, and 32 was measured"),
        ('{"models": ["bert_tiny"]}', r"its models is \['bert_tiny'\], and "),
    ],
)
def test_settings_of_another_grid_are_refused_before_anything_is_fitted(results, content, message, capsys):
    (results / "grid.json").write_text(content)
    with pytest.raises(DataError, match=message):
        COMMAND.main(["fit", str(results), "--out", str(results / "laws.json")])
    assert not (results / "laws.json").exists()


def test_what_was_measured_twice_is_said_and_no_draws_give_no_band(results, capsys):
    write_measurements(MEASUREMENTS.joined([MEASUREMENTS]), results / "measurements.parquet")
    out = results / "new" / "laws.json"
    assert COMMAND.main(["fit", str(results), "--out", str(out), "--draws", "0", "--forms"]) == 0
    said = f"{len(MEASUREMENTS)} of {2 * len(MEASUREMENTS)} blocks are of trainings that were measured already"
    assert said in " ".join(capsys.readouterr().out.split())
    laws = read_laws(out)
    assert said in " ".join(laws.surface.notes)
    assert laws.forms == {}
    assert np.isnan(laws.surface.band(1e6, 512, 1e-3)).all()
