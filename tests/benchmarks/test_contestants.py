"""Contestants as processes: good ones, and ones that die, hang or fail."""

import sys
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.simulation.contestants import Contestant, ContestantError
from benchmarks.simulation.measurement import Measurement

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_a_measurement_goes_on_without_those_that_fail(tmp_path):
    def launch(kind):
        command = [sys.executable, str(Path(__file__).with_name("fake_contestant.py")), kind]
        return Contestant(command, tmp_path / f"{kind}.log", 10, {"PYTHONPATH": str(ROOT)})

    def missing():
        raise ContestantError("make it")

    with closing(Measurement(clients=5, loss_before=4.0, engine="first", idle_seconds=0.1)) as measurement:
        measurement.start("ours", lambda: launch("two"))
        for program in ("fails", "dies", "hangs", "other work", "talks nonsense"):
            measurement.start(program, lambda program=program: launch(program))
        measurement.start("missing", missing)
        measurement.watch_idle()
        for number in range(3):
            measurement.run_pass(backwards=number % 2 == 1)
    summary = measurement.summary()
    assert set(summary["problems"]) == {"fails", "dies", "hangs", "missing", "talks nonsense"}
    assert set(summary["contestants"]) == {"first", "second", "other work"}
    assert summary["contestants"]["first"]["steps_per_second"] == 40.0
    assert summary["contestants"]["first"]["clients_per_second"] == 20.0
    assert len(summary["contestants"]["second"]["seconds"]) == 3
    assert summary["engine_over"]["second"] == {"min": 2.0, "median": 2.0, "max": 2.0}
    assert summary["loss_disagreements"] == {"other work": 0.5}
    assert any("other work" in warning for warning in measurement.warnings())
