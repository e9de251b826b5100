"""A vocabulary that is made of the training data with differential privacy for each client."""

import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from fedlm.fl_core.errors import ConfigurationError, DataError, setting
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.number_ranges import Count, Positive
from fedlm.fl_core.privacy.accounting.delta import Delta
from fedlm.fl_core.privacy.origins.private_words import noisy_words
from fedlm.fl_core.privacy.origins.vocabulary_origin import PrivateVocabulary
from fedlm.simulations.data.splits import SPLITS, SplitRule
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from fedlm.simulations.data.vocabulary.tokenizer_settings import TokenizerSettings

PUBLIC_CHARACTERS = "".join(sorted(set(string.printable) - set(string.whitespace)))
"""Characters that a private vocabulary of pieces of words has, whoever wrote them: printable ASCII."""


@dataclass(frozen=True, kw_only=True)
class VocabularyPrivacySettings:
    """What the vocabulary tells of the people whose text it is made of."""

    vocabulary_epsilon: Positive | None = None
    """Choose the vocabulary with (this, vocabulary_delta)-differential privacy for each client, by noised counts of
    words. Without it, others can read in the vocabulary what one client wrote. The noise is fresh each time, so such an
    import cannot be repeated."""
    vocabulary_delta: Delta | None = None
    """The delta of vocabulary_epsilon: far below one over the number of clients."""
    vocabulary_words_per_client: Annotated[Count, OnlyWith("vocabulary_epsilon")] = 500
    """Count this many of a client's most frequent distinct words for a private vocabulary. With more, each counts for
    less."""
    vocabulary_origin: Literal["public"] | None = None
    """Say that the vocabulary that you give is public: made without text of anybody whom a guarantee has to protect.
    Every model's statement repeats this."""

    def __post_init__(self) -> None:
        if (self.vocabulary_epsilon is None) != (self.vocabulary_delta is None):
            missing = "vocabulary_epsilon" if self.vocabulary_epsilon is None else "vocabulary_delta"
            raise ConfigurationError(
                f"{setting(missing)} is not given: a private vocabulary needs both an epsilon and a delta"
            )


def plan_of(settings: VocabularyPrivacySettings) -> PrivateVocabulary | None:
    """Plan the private vocabulary that settings ask for; None where they ask for none.

    Raises:
      ConfigurationError: a number is out of range.
    """
    if settings.vocabulary_epsilon is None or settings.vocabulary_delta is None:
        return None
    # Which imports dp-accounting, for a second or two.
    from fedlm.fl_core.privacy.promise.counts.vocabulary_spending import plan_vocabulary

    return plan_vocabulary(settings.vocabulary_epsilon, settings.vocabulary_delta, settings.vocabulary_words_per_client)


def counted_texts(
    client_id: str, texts: Iterable[tuple[str | None, list[str]]], resplit: bool, seed: int
) -> Iterable[str]:
    """Yield the texts, by split, of a client that may be counted: a function of the client and of settings alone.

    Which splits a source has, and so whether a tenth of the train split's users is held out, may depend on a single
    client. Users of whom that may be are never counted.
    """
    rule = SplitRule(frozenset(SPLITS) - {"train"}, resplit, seed)
    return (sentence for split, some in texts if rule.split(client_id, split) == "train" for sentence in some)


def train_privately(
    counts: Mapping[str, int], plan: PrivateVocabulary, settings: TokenizerSettings, words_are_separated: bool
) -> Tokenizer:
    """Train a tokenizer on the words that noise leaves of the clients' contributions.

    Raises:
      DataError: no word is left for a vocabulary of words, or the vocabulary cannot hold the characters.
    """
    words = noisy_words(counts, plan)
    if not words and settings.tokenizer == "words":
        raise DataError(
            f"tokenizer: with {setting('vocabulary_epsilon')} {plan.epsilon:g} no word is frequent enough: in this "
            f"little text none of {plan.words_per_client} words of a client is left unless some "
            f"{_needed_clients(plan):,} clients have it. Give a larger {setting('vocabulary_epsilon')}, fewer "
            f"{setting('vocabulary_words_per_client')}, or a public {setting('vocabulary')}."
        )
    characters = PUBLIC_CHARACTERS.lower() if settings.lowercase else PUBLIC_CHARACTERS
    return Tokenizer.train(words, settings, words_are_separated, "".join(sorted(set(characters))))


def _needed_clients(plan: PrivateVocabulary) -> int:
    return round(plan.threshold * plan.words_per_client**0.5)
