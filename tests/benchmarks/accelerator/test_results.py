import json
from types import SimpleNamespace

import pytest

from benchmarks.accelerator import cells, goals, records, report
from benchmarks.accelerator.plots import draw
from benchmarks.accelerator.shares import busy_of
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.models.registry import MODELS

FOUND = {
    "platform": "gpu",
    "device": "Accelerator",
    "device_count": 1,
    "jax": "1",
    "jaxlib": "1",
    "memory": {},
    "driver": None,
    "python": "3",
    "cores": 1,
    "processor": "x",
}
RUN = {"kind": "run", "started": "now", "rehearsal": False, "found": FOUND}


def measured(group, name, result):
    return {"kind": "cell", "group": group, "name": name, "status": "measured", "seconds": 1.0, "result": result}


def skipped(group, name):
    return {"kind": "cell", "group": group, "name": name, "status": "skipped", "reason": "why not", "seconds": 0.0}


def written(folder, *lines):
    for line in lines:
        records.append(folder, line)
    return records.read(folder)


PEAKS = (
    measured("peaks", "products", {"flops_per_second": dict.fromkeys(("bfloat16", "tf32", "float32"), 100.0)}),
    measured("peaks", "memory", {"bytes_per_second": 10.0, "from_host_bytes_per_second": 1.0,
                                 "to_host_bytes_per_second": 1.0, "seconds_of_a_call_that_is_waited_for": 1.0,
                                 "seconds_of_a_queued_call": 1.0}),
)  # fmt: skip


def a_round(seconds):
    # A step: 3 products bound by arithmetic, 1 s each, one bound by memory, 2 s, and 5 bytes; a client: 10 bytes.
    products = [[100.0, 1.0, 3], [100.0, 20.0, 1]]
    return {
        "products_a_step": products, "other_bytes_a_step": 5.0, "bytes_a_client": 10.0, "steps": 4, "clients": 2,
        "devices": 1, "seconds": {"median": seconds}, "clients_per_second": 2 / seconds, "lanes": 1,
        "steps_per_second": 4 / seconds, "bare_steps_per_second": 1.0, "seconds_of_first_round": 1.0, "memory": {},
    }  # fmt: skip


def a_step(seconds, parameters=25_000_000):
    return {
        "parameters": parameters, "seconds": {"median": seconds}, "tokens_per_second": 1 / seconds, "devices": 1,
        "model_flops_a_token": 50.0, "microbatch": 1, "planned_bytes": 1,
    }  # fmt: skip


def test_a_round_is_held_to_the_roofline_of_its_products_and_bytes(tmp_path):
    name = "cifg_19m, tf32, 1 lanes"
    results = written(tmp_path, RUN, *PEAKS, measured("rounds", name, a_round(100.0)))
    assert goals.part_of_roofline(results, a_round(100.0), "tf32") == pytest.approx((4 * (3 + 2 + 0.5) + 2) / 100)
    (goal, *_) = goals.goals(results)
    assert (goal.met, goal.measured[:5]) == (False, "24.0%")
    results = written(tmp_path, measured("rounds", "cifg_19m, bfloat16, 1 lanes", a_round(48.0)))
    assert goals.goals(results)[0].met


def test_private_steps_are_held_to_the_plain_step_and_to_jax_privacy(tmp_path):
    case = "transformer_21m, bfloat16, 2 x 2"
    kinds = {"plain": 1.0, "ghost": 2.0, "bookkeeping": 1.2, "jax_privacy": 2.0}
    lines = [measured("private_steps", f"{case}, {kind}", a_step(seconds)) for kind, seconds in kinds.items()]
    small = [measured("private_steps", f"bert_tiny, tf32, 2 x 2, {kind}", a_step(1.0, 10)) for kind in kinds]
    results = written(tmp_path, RUN, *PEAKS, *lines, *small)
    found = {one.goal.partition(":")[0]: one for one in goals.goals(results) if one.goal.startswith("private")}
    assert [one.met for one in found.values()] == [False, True, False]
    assert [one.measured for one in found.values()] == [
        "83.3% (bookkeeping)",
        "1.20 x (bookkeeping)",
        "1.67 x (bookkeeping)",
    ]
    assert goals.utilization(results, case, a_step(1.0)) == 0.5
    assert "| 50.0% |" in report.summary(results)
    panels = [axes for axes in draw(results)["private_steps"].axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == [case, "bert_tiny, tf32, 2 x 2"]


def test_what_was_not_measured_is_not_met_and_not_missed(tmp_path):
    results = written(tmp_path, RUN, skipped("rounds", "cifg_19m, tf32, 1 lanes"))
    assert {goal.met for goal in goals.goals(results)} == {None}
    assert "why not" in report.summary(results)
    assert draw(results) == {}


def test_a_comparison_outside_its_bound_misses_the_goal(tmp_path):
    bounds = {"tf32": 0.1, "bfloat16": 0.1}
    one = {"differences": {"tf32": {"round": 0.2}, "bfloat16": {"round": 0.01}}, "bounds": bounds,
           "within": {"tf32": False, "bfloat16": True}}  # fmt: skip
    goal = goals.goals(written(tmp_path, RUN, measured("parity", "a", one)))[-1]
    assert (goal.met, "a in tf32" in goal.measured, "bfloat16" in goal.measured) == (False, True, False)


def test_a_line_that_was_cut_off_is_passed_over_and_the_next_is_whole(tmp_path):
    written(tmp_path, RUN, measured("noise", "a", {"x": 1}))
    with (tmp_path / records.FILE).open("a") as file:
        file.write('{"kind": "cell", "group": "noi')
    results = written(tmp_path, measured("noise", "b", {"x": 2}))
    assert results.measured("noise") == {"a": {"x": 1}, "b": {"x": 2}}


def test_the_newest_result_counts_and_a_failure_hides_none(tmp_path):
    results = written(tmp_path, RUN, measured("noise", "a", {"x": 1}), RUN, measured("noise", "a", {"x": 2}), RUN,
                      skipped("noise", "a"))  # fmt: skip
    assert results.measured("noise") == {"a": {"x": 2}}


@pytest.mark.parametrize("change", [{"rehearsal": True}, {"found": FOUND | {"device": "another"}}])
def test_results_of_another_machine_or_of_a_rehearsal_stand_in_no_table_with_these(tmp_path, change):
    results = written(tmp_path, RUN | change, measured("noise", "a", {"x": 1}), RUN, measured("noise", "b", {"x": 2}))
    assert results.measured("noise") == {"b": {"x": 2}}


def test_a_rehearsal_is_unmistakable(tmp_path):
    results = written(tmp_path, RUN | {"rehearsal": True}, *PEAKS, measured("rounds", "m, tf32, 1 lanes", a_round(1.0)))
    assert report.summary(results).startswith("# A rehearsal on a CPU\n\n**THIS IS A REHEARSAL")
    (figure,) = draw(results).values()
    assert any("REHEARSAL" in text.get_text() for text in figure.texts)
    of_a_device = written(tmp_path, RUN, *PEAKS, measured("rounds", "m, tf32, 1 lanes", a_round(1.0)))
    assert "REHEARSAL" not in report.summary(of_a_device)
    assert not any("REHEARSAL" in text.get_text() for text in draw(of_a_device)["rounds"].texts)


def test_an_idle_device_is_seen_in_its_streams_alone():
    def line(name, *events):
        made = [SimpleNamespace(start_ns=start, duration_ns=length, name=what) for start, length, what in events]
        return SimpleNamespace(name=name, events=made)

    streams = [
        line("Stream #1(Compute)", (100, 10, "gemm"), (130, 20, "gemm")),
        line("Stream #2(Memcpy)", (105, 10, "copy"), (140, 5, "copy")),
        line("XLA Modules", (0, 1000, "everything")),
    ]
    planes = [SimpleNamespace(name="/host:CPU", lines=[line("python", (0, 1, "x"))]),
              SimpleNamespace(name="/device:GPU:0", lines=streams)]  # fmt: skip
    found = busy_of(planes)
    assert found["idle"] == pytest.approx(1 - 35 / 50)
    assert next(iter(found["longest"].items())) == ("gemm", pytest.approx(30 / 45, abs=1e-4))
    assert "reason" in busy_of(planes[:1])


def test_cells_name_what_there_is_once_and_in_order_of_value():
    assert set(cells.MECHANISMS) == {"plain draw", *MECHANISMS}
    assert {*cells.LARGER_MODELS, *cells.SMALLEST_MODELS} == set(MODELS)
    for wanted in (cells.full(), cells.tiny()):
        names = [(cell.group, cell.name) for cell in wanted]
        assert len(set(names)) == len(names)
        assert {cell.group for cell in wanted} == set(cells.GROUPS)
        assert [cell.group for cell in wanted[:2]] == ["peaks", "peaks"]
        json.dumps([cell.arguments for cell in wanted])


def test_a_rehearsal_calls_all_functions_with_all_arguments():
    def calls(wanted):
        return {(cell.measure, *sorted(cell.arguments)) for cell in wanted}

    def kinds(wanted):
        return {cell.arguments.get("kind") for cell in wanted}

    assert calls(cells.tiny()) == calls(cells.full())
    assert kinds(cells.tiny()) == kinds(cells.full())
