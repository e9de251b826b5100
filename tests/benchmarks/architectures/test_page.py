"""The page on architectures says what the tables of the trainings say."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "architectures" / "results"
TABLES = ("axes.md", "production.md", "clients.md")


def test_every_gap_with_an_interval_is_in_a_table():
    page = (ROOT / "docs" / "architectures.md").read_text()
    tables = "".join((RESULTS / name).read_text() for name in TABLES)
    stated = set(re.findall(r"(?<![\d.])[+-]\d+\.\d ± \d+\.\d", page))
    assert len(stated) > 20
    assert sorted(gap for gap in stated if gap not in tables) == []


def test_every_perplexity_with_a_deviation_is_in_a_table():
    page = (ROOT / "docs" / "architectures.md").read_text()
    tables = "".join((RESULTS / name).read_text() for name in TABLES)
    stated = set(re.findall(r"(?<![\d.+-])\d+\.\d ± \d+\.\d", page))
    assert len(stated) >= 6
    assert sorted(one for one in stated if one not in tables) == []
