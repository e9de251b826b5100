"""All that was counted in the text of a run's people beside its trainings, and goes out with its model: words or items
for vocabularies, and tokens for the relevances that attention is corrected by."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.fl_core.privacy.accounting.release_events import Event, StatedEvent
from fedlm.fl_core.privacy.origins.ancestry import Phase, data_of_people
from fedlm.fl_core.privacy.origins.relevance_origin import RELEVANCE_FIELD, RelevanceOrigin
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.privacy.origins.vocabulary_origin import ORIGIN_FIELD, VocabularyOrigin
from fedlm.fl_core.privacy.promise.counts.relevance_spending import not_hidden, relevance_events
from fedlm.fl_core.privacy.promise.counts.vocabulary_spending import vocabulary_events


class Counts(NamedTuple):
    """What was counted about a unit of privacy.

    Attributes:
      vocabularies: where those come from of a run, and of what its first parameters went through, each release of noise
        once; the run's own first, where there is one. Tokenizers of all these are equal, but what made one may have
        been another release, about the same people, than what made the next.
      relevances: likewise, those that they learned of their people; all of them, with those that were not private.
      own: the relevances that the run's own attention is corrected by; None without re-attention.
      unit: of privacy.
    """

    vocabularies: tuple[VocabularyOrigin, ...]
    relevances: tuple[RelevanceOrigin, ...]
    own: RelevanceOrigin | None
    unit: str

    @staticmethod
    def of_run(origins: Origins, training_data: str | None, unit: str) -> "Counts":
        """Collect those of a run that begins with these."""
        own = origins.relevance
        own = None if own is None else own.seen_from(data_of_people(origins.ancestry, training_data))
        vocabularies = _vocabularies(origins.vocabulary, origins.ancestry, training_data, unit)
        return Counts(vocabularies, _relevances(own, origins.ancestry), own, unit)

    @staticmethod
    def of_trainings(trainings: Sequence[Phase], training_data: str | None, unit: str) -> "Counts":
        """Collect those of some trainings."""
        vocabularies = _vocabularies(None, trainings, training_data, unit)
        return Counts(vocabularies, _relevances(None, trainings), None, unit)

    @property
    def vocabulary(self) -> VocabularyOrigin:
        """What is said of several equal vocabularies: a guarantee covers them only if it covers each of them."""
        return min(self.vocabularies, key=lambda one: one.covered)

    @property
    def told(self) -> bool:
        """Whether the run tells of its people by more than its sums and words that were found without privacy."""
        return self.vocabulary.private is not None or self.own is not None

    def events(self) -> list[Event]:
        """Describe what they release about the unit."""
        of_words = [event for origin in self.vocabularies for event in vocabulary_events(origin, self.unit)]
        return [*of_words, *relevance_events(self.relevances, self.unit)]

    def not_hidden(self) -> list[str]:
        """Say why they are not private for the unit though they are for each client; nothing where they are."""
        return not_hidden(self.relevances, self.unit)

    def not_private(self, delta: float) -> list[str]:
        """Say why nothing can be promised at delta of a model that they go out with."""
        in_the_open = [] if self.own is None or self.own.not_private is None else [self.own.not_private]
        return [*self.too_much_delta(delta), *in_the_open, *self.not_hidden()]

    def too_much_delta(self, delta: float) -> list[str]:
        """Say that the chance that a vocabulary gives its people away is as large as delta; nothing where it is not."""
        of_events = math.fsum(event.delta * event.count for event in self.events() if isinstance(event, StatedEvent))
        if of_events < delta:
            return []
        spent = math.fsum(one.private.delta for one in self.vocabularies if one.private is not None and one.covered)
        return [
            f"the vocabulary has spent delta {rounded_up(spent)}, and the run's delta is {delta:g}, which leaves "
            "nothing for the run; ask for a larger delta, or import the data again with a smaller delta for the "
            "vocabulary"
        ]

    def assumptions(self) -> list[str]:
        """Say what has to hold of those whose spending is counted."""
        of_words = [line for origin in self.vocabularies for line in origin.assumptions]
        return [*of_words, *(line for origin in self.relevances for line in origin.assumptions)]

    def sentences(self) -> list[str]:
        """Say whether a guarantee covers them."""
        first, *behind = [one.sentence() for one in self.vocabularies]
        own = [] if self.own is None else [self.own.sentence()]
        return [first, *(f"for an earlier training of the parameters, {one}" for one in behind), *own]

    def provisos(self) -> list[str]:
        """Name in short what an epsilon does not cover of them, or only by a user's word."""
        provisos = ["assumed: public vocabulary"] if self.vocabulary.kind == "public" else []
        if self.own is not None and self.own.kind == "public":
            provisos.append("assumed: public relevances of tokens")
        return provisos if self.vocabulary.covered else [*provisos, "VOCABULARY NOT COVERED"]

    def as_json(self) -> dict[str, Any]:
        """Make what a statement says of them: `vocabulary_origin`, with `vocabularies` where there are several, and
        with re-attention `relevance_origin`."""
        said: dict[str, Any] = {ORIGIN_FIELD: self.vocabulary.as_json()}
        if len(self.vocabularies) > 1:
            said["vocabularies"] = [origin.as_json() for origin in self.vocabularies]
        return said if self.own is None else said | {RELEVANCE_FIELD: self.own.as_json()}


def _vocabularies(
    own: VocabularyOrigin | None, ancestry: Sequence[Phase], training_data: str | None, unit: str
) -> tuple[VocabularyOrigin, ...]:
    """Of other people's trainings those count whose vocabulary was taken from another data set, of which nobody has
    said whose text it is."""
    people = data_of_people(ancestry, training_data)
    behind = [
        origin
        for phase in ancestry
        for origin in [VocabularyOrigin.from_json(phase.vocabulary)]
        if phase.people == "same" or origin.of_another
    ]
    found: dict[Any, VocabularyOrigin] = {}
    for origin in behind if own is None else [own, *behind]:
        seen = origin.seen_from(people).stated_for(unit)
        key = seen if seen.private is None else (seen.release, seen.private)
        # Of two records of one release what covers less, or costs more, holds for both.
        found[key] = min(found.get(key, seen), seen, key=lambda one: (one.covered, not one.of_another))
    return tuple(found.values())


def _relevances(own: RelevanceOrigin | None, ancestry: Sequence[Phase]) -> tuple[RelevanceOrigin, ...]:
    behind = [RelevanceOrigin.from_json(phase.relevance) for phase in ancestry if phase.people == "same"]
    return tuple({(one.sha256, one.private): one for one in [own, *behind] if one is not None}.values())
