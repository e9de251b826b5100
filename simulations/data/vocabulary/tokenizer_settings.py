"""What tokenizer an import makes, as its user asks for it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.number_ranges import Count


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings:
    """What tokenizer to train, or to take."""

    tokenizer: Literal["wordpiece", "words", "characters"] = "wordpiece"
    """How text becomes tokens. wordpiece: pieces of words, as BERT cuts them, so that hardly a word is unknown. words:
    whole words, as in the published Stack Overflow tasks; rare ones are unknown. characters: each by itself, the
    space too, as in the published Shakespeare tasks."""
    vocabulary_size: Count = 4096
    """Most tokens of the vocabulary. For wordpiece, special tokens and characters are among them. Of
    words or characters it is the number of the most frequent ones kept, and the 4 special tokens come on top."""
    lowercase: bool = True
    """Lower-case all text first."""
    vocabulary: Path | None = None
    """A vocabulary to use instead of training one: a store or its tokenizer.json, which is used as it is, whatever the
    other settings. Or for wordpiece a vocab.txt of one token a line, as BERT has it, used whole with our special tokens
    for its own. Or for words a file of `word count` lines, most frequent first, such as the published
    stackoverflow.word_count; the first vocabulary_size words are used. Or for characters a file of one a line."""

    def __post_init__(self) -> None:
        check_value_types(self)


DEFAULT_SETTINGS = TokenizerSettings()
