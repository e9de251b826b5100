"""What the page on security says of liars is what was measured, by a command that runs."""

import json
from pathlib import Path

import pytest

from benchmarks.security import poisoning

PAGE = Path(__file__).parents[3] / "docs" / "security.md"


def test_the_page_has_the_table_that_was_measured():
    rows = json.loads(poisoning.RESULTS.read_text(encoding="utf-8"))["rows"]
    assert poisoning.table(rows) in PAGE.read_text(encoding="utf-8")


@pytest.mark.long
def test_a_liar_ruins_what_nothing_bounds_and_not_what_is_bounded():
    text = poisoning.read_modules()
    losses = {
        name: poisoning.heldout_loss(text, "huge", 10, poisoning.DEFENCES[name], 0, 10)[0]
        for name in ("nothing", "mean")
    }
    assert losses["mean"] < 4 < losses["nothing"]
