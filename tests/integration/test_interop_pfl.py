"""pfl-research trains our models as PyTorch modules, with our logits, and comes where we come."""

import math

import pytest

from benchmarks.interop.comparisons import compare_with_pfl
from benchmarks.interop.peer_python import PEERS
from benchmarks.interop.task import Setting
from tests.support.interop_page import run_block

pytestmark = [
    pytest.mark.reference,
    pytest.mark.skipif(not (PEERS / ".venv" / "installed").exists(), reason="run `make bench-peers`"),
]


@pytest.mark.parametrize(
    "model", [pytest.param("cifg_tiny", marks=pytest.mark.thorough), "si_cifg_tiny", "transformer_tiny"]
)
def test_logits_and_one_round_are_ours(model, tmp_path):
    comparison, logits = compare_with_pfl(Setting(model, rounds=1), tmp_path)
    assert logits < 1e-5
    assert max(comparison.differences) < 5e-6 < 1e-3 < comparison.moved


def test_the_lines_of_the_page_run(small_store, tmp_path):
    before, after = map(float, run_block("pfl", small_store, tmp_path, timeout=550).split()[-2:])
    assert before == pytest.approx(math.log(120), abs=0.1), "nobody has trained yet"
    assert after < before - 1
