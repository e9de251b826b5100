"""How text becomes a token store."""

from dataclasses import dataclass

from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Count, Seed
from fedlm.simulations.data.vocabulary.private_vocabulary import VocabularyPrivacySettings
from fedlm.simulations.data.vocabulary.tokenizer_settings import TokenizerSettings


@dataclass(frozen=True, kw_only=True)
class ImportSettings(VocabularyPrivacySettings, TokenizerSettings):
    """How text becomes a token store, whatever its source.

    Example:
      >>> ImportSettings(vocabulary_size=1000, min_examples=5).lowercase
      True
    """

    tokenizer_sentences: Count = 2_000_000
    """Train the tokenizer on about this many sentences at most, from some clients of the train split. A private
    vocabulary uses all of them."""
    min_examples: Count = 1
    """Leave out clients with fewer examples, all splits together (the published Stack Overflow has 100)."""
    resplit: bool = False
    """Split by user, 80/10/10, even if the source has splits of its own."""
    seed: Seed = 0
    """Seed of the split by user."""

    def __post_init__(self) -> None:
        check_value_types(self)
        super().__post_init__()
        if self.vocabulary is not None and self.vocabulary_epsilon is not None:
            raise ConfigurationError(
                f"{setting('vocabulary_epsilon')} makes a vocabulary of the text, and vocabulary gives one; leave out "
                "one of them"
            )
        if self.vocabulary is None and self.vocabulary_origin is not None:
            raise ConfigurationError(
                f"{setting('vocabulary_origin')} is {self.vocabulary_origin!r}, but no vocabulary is given; leave it "
                f"out, or give one with {setting('vocabulary')}"
            )
