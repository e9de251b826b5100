"""Settings in messages, as whoever typed a command knows them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from fedlm.commands.option_names import named_as_options


@dataclass
class Train:
    rounds: int = 1
    steps: int = 1
    privacy: str = "none"
    cohort_size: int = 1
    min_separation: int = 1
    sampler: Literal["poisson", "min_separation"] = "poisson"
    out: Path = Path("out")


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        ("cohort_size is 0, but must be 1", "--cohort-size is 0, but must be 1"),
        (
            "a cohort_size of 5, cohort_sizes and their cohort_size",
            "a --cohort-size of 5, cohort_sizes and their --cohort-size",
        ),
        ("rounds is 0;\nsteps has 1", "--rounds is 0;\n--steps has 1"),
        ("give privacy, or leave steps out", "give --privacy, or leave --steps out"),
        ("privacy is none, but privacy is needed", "--privacy is none, but --privacy is needed"),
        # Common words, values and places are no options.
        ("after 2 rounds or steps has nothing", "after 2 rounds or steps has nothing"),
        ("the privacy of rounds is stated", "the privacy of rounds is stated"),
        ("give sampler poisson or min_separation", "give sampler poisson or min_separation"),
        ("runs/cohort_size/x: 'cohort_size' cohort_size.json", "runs/cohort_size/x: 'cohort_size' cohort_size.json"),
        ("--cohort-size is 0", "--cohort-size is 0"),
    ],
)
def test_settings_are_named_as_options_and_nothing_else_is(said, typed):
    assert named_as_options(said, [Train]) == typed
