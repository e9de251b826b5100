"""Where what a run begins with comes from, as far as it may tell of people."""

from typing import Any, NamedTuple

from fedlm.fl_core.privacy.origins.ancestry import Phase, as_records, recorded_ancestry
from fedlm.fl_core.privacy.origins.relevance_origin import RELEVANCE_FIELD, RelevanceOrigin
from fedlm.fl_core.privacy.origins.vocabulary_origin import ORIGIN_FIELD, UNKNOWN, VocabularyOrigin


class Origins(NamedTuple):
    """What every checkpoint, and the ledger, says of what a run begins with."""

    ancestry: tuple[Phase, ...] = ()  # what its first parameters went through
    vocabulary: VocabularyOrigin = UNKNOWN
    relevance: RelevanceOrigin | None = None  # that its attention is corrected by; None without re-attention

    def as_json(self) -> dict[str, Any]:
        """Make a JSON-able record, which `of_record` reads."""
        relevance = {} if self.relevance is None else {RELEVANCE_FIELD: self.relevance.as_json()}
        return {"ancestry": as_records(self.ancestry), ORIGIN_FIELD: self.vocabulary.as_json(), **relevance}

    @staticmethod
    def of_record(about: dict[str, Any]) -> "Origins":
        """Read what a checkpoint or ledger says of a run."""
        vocabulary = VocabularyOrigin.from_json(about.get(ORIGIN_FIELD))
        return Origins(recorded_ancestry(about), vocabulary, RelevanceOrigin.from_json(about.get(RELEVANCE_FIELD)))

    def noted_in(self, training: Phase) -> Phase:
        """Note in a training that begins with these what was counted for it in its people's text."""
        if self.relevance is None:
            return training
        not_private = training.not_private or self.relevance.not_private
        return training._replace(relevance=self.relevance.as_json(), not_private=not_private)
