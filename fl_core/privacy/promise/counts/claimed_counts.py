"""What a statement says of all that was counted in the text of its people, read again."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fedlm.fl_core.privacy.origins.ancestry import Phase
from fedlm.fl_core.privacy.origins.relevance_origin import RELEVANCE_FIELD, RelevanceOrigin
from fedlm.fl_core.privacy.origins.vocabulary_origin import ORIGIN_FIELD, VocabularyOrigin
from fedlm.fl_core.privacy.promise.counts import relevance_spending, vocabulary_spending


class _Kind(NamedTuple):
    """A kind of counts.

    Attributes:
      of_training: their field of a training that a statement rests on.
      of_run: their field of the run.
      several: that of a list of all that count, where there may be several; None where there may not.
      read: makes the origin of a record; None of None, or an origin that is not private.
      least: makes, of what private counts spent, the least numbers that their noise lets them claim.
    """

    of_training: str
    of_run: str
    several: str | None
    read: Callable[[Any], Any]
    least: Callable[[Any], dict[str, float]]


_KINDS = (
    _Kind("vocabulary", ORIGIN_FIELD, "vocabularies", VocabularyOrigin.from_json, vocabulary_spending.least_numbers),
    _Kind("relevance", RELEVANCE_FIELD, None, RelevanceOrigin.from_json, relevance_spending.least_numbers),
)


class ClaimedCount(NamedTuple):
    """What a statement claims of private counts."""

    place: str  # of the claim
    claimed: dict[str, Any]
    least: dict[str, float]  # numbers that their noise needs


def claimed_counts(statement: dict[str, Any]) -> Iterator[ClaimedCount]:
    """Find all private counts that a statement names, those of trainings before it among them. Raises
    ConfigurationError where what it says of one is none that there can be."""
    earlier = [(f"ancestry.{number}.", one) for number, one in enumerate(statement["ancestry"])]
    for before, one in [("", statement), *earlier]:
        for kind in _KINDS:
            name = kind.of_training if before else kind.of_run
            listed = enumerate(_listed(one, kind))
            said = {name: one.get(name)} | {f"{kind.several}.{number}": record for number, record in listed}
            for place, record in said.items():
                private = None if record is None else kind.read(record).private
                if private is not None:
                    yield ClaimedCount(f"{before}{place}.guarantee", dataclasses.asdict(private), kind.least(private))


def counts_of_run(statement: dict[str, Any]) -> dict[str, Any]:
    """Make again what the ledger of a statement's run says of its own counts."""
    return {kind.of_run: (_listed(statement, kind) or [statement.get(kind.of_run)])[0] for kind in _KINDS}


def written_anew(training: Phase) -> Phase:
    """Write what a training says of its counts anew, from what is accounted of them."""
    said = {kind: getattr(training, kind.of_training) for kind in _KINDS}
    anew: dict[str, Any] = {
        kind.of_training: None if record is None else kind.read(record).as_json() for kind, record in said.items()
    }
    return training._replace(**anew)


def _listed(record: dict[str, Any], kind: _Kind) -> list[Any]:
    return [] if kind.several is None else record.get(kind.several, [])
