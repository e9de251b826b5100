"""Flower's messages carry our training: our strategy and Flower's end where our rounds end."""

import ast
import json
import math

import pytest

from benchmarks.interop.comparisons import compare_with_flower, flower_setting
from benchmarks.interop.peer_python import PEERS, ROOT, run_in_peer
from tests.support.interop_page import run_block

pytestmark = [
    pytest.mark.reference,
    pytest.mark.skipif(not (PEERS / ".venv" / "installed").exists(), reason="run `make bench-peers`"),
]


@pytest.mark.parametrize("strategy", ["ours", "private", "theirs"])
def test_rounds_end_where_ours_do(strategy, tmp_path):
    comparison, found = compare_with_flower(strategy, flower_setting(strategy, "cifg_tiny", 3), tmp_path)
    assert max(comparison.differences) < 2e-6 < 1e-3 < comparison.moved
    if strategy == "private":
        assert found["asked"] == 0, "after as many rounds as a node may take part in, none is asked"
        assert set(found["metrics"]) == {"clip_norm"}
    if strategy == "ours":
        assert (found["metrics"]["dropped"], found["dropped"]) == (0, 1)


def test_nodes_that_lie_count_for_nothing_and_end_no_run():
    found = json.loads(run_in_peer(PEERS, ROOT / "tests/support/hostile_flower_nodes.py"))
    assert len(found["lied_to"]) == 15
    # The honest node's update is there, once, and the liar is counted as dropped.
    assert {name: one for name, one in found["lied_to"].items() if one != [-0.5, 2.0, 1.0]} == {}
    none = "round 1: none of the 2 nodes that were asked sent an update that counts"
    assert found["nobody"] == {
        "all failed": f"{none}, and 2 failed; the first failure was: it broke",
        "all lied": f"{none}, and 0 failed; see what the client app sends",
        "nobody was asked": "round 1: no node was asked, since all that are connected have taken part as often, or as "
        "lately, as the plan allows; run fewer rounds, ask fewer nodes a round, or connect more",
    }
    # Trees of four rounds restart after rounds 3 and 7, whatever Flower calls these rounds, and the clip norm moves
    # nowhere else. The length of the noise would say what it was added to.
    assert found["begun_again"] == {"moved": [3, 7], "metrics": ["clip_norm"]}
    assert "trains nothing" in found["refused"]


def test_the_lines_of_the_page_run(small_store, tmp_path):
    plain, private = run_block("flower", small_store, tmp_path, timeout=550).splitlines()[-2:]
    before, after, metrics = plain.split(maxsplit=2)
    assert float(before) == pytest.approx(math.log(120), abs=0.1), "nobody has trained yet"
    assert float(after) < float(before) - 1
    found = ast.literal_eval(metrics)
    assert (found["clients"], found["dropped"]) == (8, 0)
    assert found["train-loss"] < float(before) - 1
    before, after, metrics = private.split(maxsplit=2)
    assert before != after
    assert set(ast.literal_eval(metrics)) == {"clip_norm"}
