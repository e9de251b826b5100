"""`fedlm laws run` and `fedlm laws import`, as they are typed."""

import pytest

from fedlm.commands.cli import main
from fedlm.simulations.laws.measuring.measurements import read_measurements
from tests.support.cells_here import cells_run_here

GRID = (
    "--models transformer_1x32 --learning-rates 0.01 --noise-batch-ratios 0 0.001 --batch-sizes 4 --steps 8 --seeds 0 "
    "--length 8 --warmup-steps 1 --block-steps 2 --microbatch-size 4"
).split()


@pytest.mark.long
def test_a_grid_is_measured_and_said_not_to_be_private(small_store, tmp_path, capsys):
    with cells_run_here():
        assert main(["laws", "run", "--data", str(small_store), "--out", str(tmp_path / "out"), *GRID]) == 0
    printed = capsys.readouterr().out
    assert "NOT PRIVATE" in printed
    assert "2 of 2 trainings, 8 blocks" in printed
    assert len(read_measurements(tmp_path / "out/measurements.parquet")) == 8


def test_import_writes_what_the_file_has(tmp_path, capsys):
    source = tmp_path / "results.csv"
    source.write_text("Model,Learning Rate,Iterations,Noise Batch Ratio,Cross Entropy\nBertTiny,0.0078125,100,0,7.5\n")
    out = tmp_path / "new" / "m.parquet"
    assert main(["laws", "import", str(source), "--out", str(out), "--batch-size", "8"]) == 0
    assert f"1 measurements of 1 models, 1 learning rates and 1 noise-batch ratios: {out}" in capsys.readouterr().out
    assert read_measurements(out).batch_size.tolist() == [8]
    assert main(["laws", "import", str(tmp_path / "none.csv"), "--out", str(out)]) == 2
    assert "none.csv: cannot be read" in capsys.readouterr().err
    assert main(["laws", "import", str(source), "--out", str(out), "--length", "0"]) == 2
    assert "length is 0, but must be at least 1" in capsys.readouterr().err
