"""A finding of a paper, and what given laws say of it."""

from dataclasses import dataclass
from typing import Literal

FEW = 3
"""Computes, or budgets, that a trend needs."""
MOST = 0.8
"""Share of cases that counts as a trend."""
Verdict = Literal["holds", "does not hold", "not reached"]


@dataclass(frozen=True)
class Finding:
    """What laws say of a claim.

    Attributes:
      number: of the claim in `FINDINGS`.
      claim: what McKenna et al. 2025 found, and where they say it.
      verdict: whether it holds; `not reached` where the laws' grid, or the measurements, do not reach so far.
      why: what the verdict is by.
      numbers: what was found, in words and as text.
    """

    number: int
    claim: str
    verdict: Verdict
    why: str
    numbers: tuple[tuple[str, str], ...] = ()


def judged(holds: bool) -> Verdict:
    """Name a verdict."""
    return "holds" if holds else "does not hold"
