import jax
import numpy as np
import pytest

from fedlm.fl_core import processes
from fedlm.fl_core.errors import ConfigurationError, DataError, ProcessLostError


def failing():
    raise DataError("no data here")


def test_alone_nothing_is_exchanged():
    tree = {"a": np.array([-0.0, np.nan], np.float32), "b": np.int32(3)}
    assert processes.is_first()
    assert processes.gather({"x": None}) == [{"x": None}]
    rows = np.ones((2, 3))
    assert processes.gather_rows(rows) is rows
    assert processes.together(lambda: 5) == 5
    placed = processes.from_first(tree)
    assert placed["a"].sharding.is_fully_replicated
    for name, leaf in tree.items():
        assert np.asarray(placed[name]).tobytes() == leaf.tobytes()


def test_a_step_that_fails_in_one_process_fails_in_all(monkeypatch):
    with pytest.raises(DataError, match="no data here"):
        processes.together(failing)
    monkeypatch.setattr(processes, "gather", lambda value: [value, "no data there"])
    with pytest.raises(ConfigurationError, match="process 1 ended: no data there"):
        processes.together(lambda: 5)


def test_only_among_several_processes_is_an_error_of_the_devices_a_lost_process(monkeypatch):
    def exchange(error="UNKNOWN: Connection closed by peer\nmore"):
        with processes.lost_processes():
            raise jax.errors.JaxRuntimeError(error)

    with pytest.raises(jax.errors.JaxRuntimeError):
        exchange()
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ProcessLostError, match=r"\(UNKNOWN: Connection closed by peer\)"):
        exchange()
    with pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory"):
        exchange("RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes")
