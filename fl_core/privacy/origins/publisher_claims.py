"""What publishers of weights promise of them: quoted as theirs, not checked, and counted in no epsilon.

A claim is about another training, on other text, with a unit of its own. So it stays apart from a run's promise:
nothing is composed with it, and no noise is chosen by it. A statement also says where a publisher claims nothing.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.origins.ancestry import MODEL_IMPORT, Phase

CLAIMS_FIELD = "publisher_claims"
"""In what is said of a run: what the publishers of its first parameters claim."""
_MOST_CHARACTERS = 200
_PLAIN = re.compile(r"[A-Za-z0-9 ,.:()/_%+&=?#~@-]*")
"""Nothing that could end a quotation, begin a line, or be printed as something else."""


@dataclass(frozen=True, kw_only=True)
class PublisherClaim:
    """What a publisher promises of weights.

    Attributes:
      epsilon: claimed, at `delta`.
      delta: claimed.
      unit: whose presence is hidden, in the publisher's words.
      source: where that is written, a URL or the title of a report.

    Raises:
      ConfigurationError: a number is out of range, or a text could be taken for words of a statement.

    Example:
      >>> unit, source = "sequence of 1,024 tokens", "arXiv 2510.15001"
      >>> PublisherClaim(epsilon=2.0, delta=1.1e-10, unit=unit, source=source).words()
      'epsilon 2.0 at delta 1.1e-10 for each "sequence of 1,024 tokens" (source: "arXiv 2510.15001")'
    """

    epsilon: float
    delta: float
    unit: str
    source: str

    def __post_init__(self) -> None:
        for name, low, high in (("epsilon", 0.0, math.inf), ("delta", 0.0, 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < high:
                raise ConfigurationError(
                    f"{setting(f'publisher_{name}')} is {value!r}, but must be at least {low:g} and below {high:g}"
                )
        for name in ("unit", "source"):
            text = getattr(self, name)
            if not isinstance(text, str) or not text.strip() or len(text) > _MOST_CHARACTERS:
                raise ConfigurationError(
                    f"{setting(f'publisher_{name}')} must be a text of 1 to {_MOST_CHARACTERS} characters"
                )
            if not _PLAIN.fullmatch(text):
                odd = next(character for character in text if not _PLAIN.fullmatch(character))
                raise ConfigurationError(
                    f"{setting(f'publisher_{name}')} has the character {odd!a}, but it is quoted within a statement, "
                    "and may have ASCII letters, digits, spaces and ,.:()/_%+&=?#~@- alone"
                )

    def words(self) -> str:
        """Quote it."""
        return f'epsilon {self.epsilon!r} at delta {self.delta!r} for each "{self.unit}" (source: "{self.source}")'

    def as_json(self) -> dict[str, Any]:
        """Make a JSON-able dictionary, which `from_json` takes."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(record: Any) -> "PublisherClaim | None":
        """Read what `as_json` made; None stands for no claim. Raises ConfigurationError where it is no such record."""
        if record is None:
            return None
        if not isinstance(record, Mapping) or set(record) != {"epsilon", "delta", "unit", "source"}:
            raise ConfigurationError(
                "the record of a publisher's claim is damaged: expected epsilon, delta, unit and source; "
                "import the weights again"
            )
        return PublisherClaim(**record)


class Quoted(NamedTuple):
    """What the publisher of imported weights claims, and which these are."""

    weights: str  # how they were imported
    claim: PublisherClaim | None

    def sentence(self, private: bool) -> str:
        """Quote the claim behind what is said of a run, which promises something itself where `private`."""
        if self.claim is None:
            return f"the weights that {self.weights} took in come without a claim of their publisher"
        apart = "not part of the epsilon above" if private else "no promise of this run"
        return (
            f"the publisher of the weights that {self.weights} took in claims {self.claim.words()}: fedlm has not "
            f"checked this claim, and it is {apart}"
        )


def quoted_claims(ancestry: Sequence[Phase]) -> tuple[Quoted, ...]:
    """Find what is claimed of all weights that first parameters come from and that were imported. Raises
    ConfigurationError where a record of that is damaged."""
    imported = [phase for phase in ancestry if phase.command == MODEL_IMPORT]
    return tuple(Quoted(phase.words, PublisherClaim.from_json(phase.claim)) for phase in imported)


def claims_as_json(ancestry: Sequence[Phase], private: bool) -> dict[str, Any]:
    """Make JSON-able what is claimed, under `CLAIMS_FIELD`, and how it is said of a run, which promises something
    itself where `private`; nothing where nothing was imported."""
    records = [
        {
            "weights": one.weights,
            "claim": None if one.claim is None else one.claim.as_json(),
            "checked": False,
            "statement": one.sentence(private),
        }
        for one in quoted_claims(ancestry)
    ]
    return {CLAIMS_FIELD: records} if records else {}


def not_private_with_claims(said: str, ancestry: Sequence[Phase]) -> str:
    """Quote claims behind what is said of a run of which nothing is promised."""
    return "; ".join([said, *(one.sentence(private=False) for one in quoted_claims(ancestry))])
