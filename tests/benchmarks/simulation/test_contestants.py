"""Contestants as processes: good ones, and ones that die, hang or fail."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from benchmarks.simulation.contestants import Contestant, ContestantError, idle_cpu_percent, parse_answer
from benchmarks.simulation.measurement import Measurement

ROOT = Path(__file__).parents[3]
Launch = Callable[..., Contestant]


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    def start(kind: str, timeout: float = 60) -> Contestant:
        command = [sys.executable, str(Path(__file__).with_name("fake_contestant.py")), kind]
        return Contestant(command, tmp_path / f"{kind}.log", timeout, {"PYTHONPATH": str(ROOT)})

    return start


def test_a_round_is_answered_and_what_libraries_print_is_no_answer(launch: Launch):
    with closing(launch("good")) as contestant:
        assert contestant.ready["variants"] == ["only"]
        assert contestant.ready["versions"].keys() == {"numpy"}
        assert contestant.run_round("only") == {"seconds": 0.25, "steps": 10, "loss_after": 3.0}
        assert contestant.memory() > 0
        assert contestant.age > 0


def test_closing_ends_the_process(launch: Launch):
    contestant = launch("good")
    pid = contestant.family()[0].pid
    contestant.close()
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(("kind", "message"), [("dies", "has ended"), ("hangs", "no answer"), ("fails", "no more")])
def test_a_bad_round_is_reported(launch: Launch, kind: str, message: str):
    with closing(launch(kind)) as contestant:
        contestant.run_round("only")
        contestant.run_round("only")
        contestant._timeout = 0.5
        with pytest.raises(ContestantError, match=message):
            contestant.run_round("only")


def test_asking_a_dead_contestant_is_reported(launch: Launch):
    with closing(launch("good")) as contestant:
        os.kill(contestant.family()[0].pid, signal.SIGKILL)
        with pytest.raises(ContestantError, match="has ended"):
            contestant.run_round("only")


@pytest.mark.parametrize("kind", ["talks nonsense", pytest.param("never ready", marks=pytest.mark.long)])
def test_what_does_not_get_ready_is_ended(launch: Launch, kind: str):
    with pytest.raises(ContestantError):
        launch(kind, timeout=2)
    children = psutil.Process().children(recursive=True)
    assert not any(kind in child.cmdline() for child in children if child.status() != psutil.STATUS_ZOMBIE)


def test_a_paused_contestant_is_stopped_and_goes_on(launch: Launch):
    with closing(launch("good")) as contestant:
        contestant.pause()
        assert contestant.family()[0].status() == psutil.STATUS_STOPPED
        contestant.resume()
        assert contestant.run_round("only")["steps"] == 10


def test_idle_contestants_use_little(launch: Launch):
    with closing(launch("good")) as contestant:
        assert idle_cpu_percent([contestant], 0.5)[0] < 50


@pytest.mark.parametrize("line", ["", "hello", "[1]", "3", '{"seconds": 1}'])
def test_what_is_no_answer_is_refused(line: str):
    with pytest.raises(ContestantError):
        parse_answer(line)


def test_an_error_is_raised_with_its_words():
    with pytest.raises(ContestantError, match="it hurts"):
        parse_answer('{"error": "it hurts"}')


@pytest.mark.long
def test_a_measurement_goes_on_without_those_that_fail(launch: Launch):
    def missing() -> Contestant:
        raise ContestantError("make it")

    with closing(Measurement(clients=5, loss_before=4.0, engine="first", idle_seconds=0.1)) as measurement:
        measurement.start("ours", lambda: launch("two"))
        for program in ("fails", "dies", "other work"):
            measurement.start(program, lambda program=program: launch(program))
        measurement.start("missing", missing)
        measurement.watch_idle()
        for number in range(3):
            measurement.run_pass(backwards=number % 2 == 1)
    summary = measurement.summary()
    assert set(summary["problems"]) == {"fails", "dies", "missing"}
    assert set(summary["contestants"]) == {"first", "second", "other work"}
    assert summary["contestants"]["first"]["steps_per_second"] == 40.0
    assert summary["contestants"]["first"]["clients_per_second"] == 20.0
    assert len(summary["contestants"]["second"]["seconds"]) == 3
    assert summary["engine_over"]["second"] == {"min": 2.0, "median": 2.0, "max": 2.0}
    assert summary["loss_disagreements"] == {"other work": 0.5}
    assert any("other work" in warning for warning in measurement.warnings())
