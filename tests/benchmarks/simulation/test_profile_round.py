import pytest

from benchmarks.simulation.profile_round import by_kind


def operation(name, milliseconds):
    return {"ph": "X", "name": name, "dur": 1e3 * milliseconds}


def test_operations_are_told_apart_by_what_they_do_and_how_often():
    steps = 10
    events = [operation("ynn_fusion.3", 1.0)] * steps + [operation("dot.2", 0.1)] * 20 * steps
    events += [operation("transpose_copy_fusion", 0.5)] * steps + [operation("multiply_fusion", 2.0)] * 2
    events += [operation("while.5", 100.0), {"ph": "M", "name": "dot.2"}]
    kinds = by_kind(events, steps)
    assert kinds == pytest.approx(
        {
            "matrix products, every time step or layer": 2.0,
            "matrix products, every local step": 1.0,
            "copies, every local step": 0.5,
            "elementwise and other, once a client": 0.4,
        }
    )
    assert list(kinds.values()) == sorted(kinds.values(), reverse=True)
