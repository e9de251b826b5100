"""`fedlm laws run` and `fedlm laws import`, as they are typed."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from fedlm.commands.cli import main
from fedlm.simulations.laws.measuring.measurements import read_measurements
from tests.support.cells_here import cells_run_here

GRID = (
    "--models transformer_1x32 --learning-rates 0.01 --noise-batch-ratios 0 0.001 --batch-sizes 4 --steps 40 --seeds 0 "
    "--length 8 --warmup-steps 1 --block-steps 2 --microbatch-size 4"
).split()


def words(store, out, *more):
    return ["laws", "run", "--data", str(store), "--out", str(out), *GRID, *more]


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


@pytest.mark.long
def test_a_stopped_grid_goes_on_to_the_same_measurements(small_store, tmp_path):
    """Stopped and continued, then ended by SIGTERM, then run to its end with another number of workers; and run at once
    in one process."""
    line, environment = [sys.executable, "-m", "fedlm"], os.environ
    first = subprocess.Popen(
        [*line, *words(small_store, tmp_path / "out", "--workers", "2", "--steps", "4000")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not list((tmp_path / "out").glob("cells/*/")):
        assert first.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    first.send_signal(signal.SIGSTOP)
    time.sleep(1)
    first.send_signal(signal.SIGCONT)
    time.sleep(0.5)
    assert first.poll() is None
    first.send_signal(signal.SIGTERM)
    _, errors = first.communicate(timeout=120)
    assert first.returncode == 143, errors
    run = subprocess.run(
        [*line, *words(small_store, tmp_path / "out", "--workers", "1", "--steps", "8", "16")],
        capture_output=True, text=True, timeout=280, check=False, env=environment,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "NOT PRIVATE" in run.stdout
    assert "4 of 4 trainings, 24 blocks" in run.stdout
    assert "measuring TFLOP" in run.stderr
    with cells_run_here():
        assert main(words(small_store, tmp_path / "other", "--steps", "8", "16")) == 0
    found, other = (read_measurements(tmp_path / out / "measurements.parquet") for out in ("out", "other"))
    for name, column in found.columns().items():
        np.testing.assert_array_equal(column, getattr(other, name))
