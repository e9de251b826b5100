"""The kinds of tokenizers by name.

A new kind is one module with the functions of `TokenizerKind`, one line in `TOKENIZERS`, and its name among the choices
of `TokenizerSettings.tokenizer`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import tokenizers

from fedlm.simulations.data.vocabulary import character_level, word_level, wordpiece
from fedlm.simulations.data.vocabulary.text_cutting import TextCutter
from fedlm.simulations.data.vocabulary.tokenizer_settings import TokenizerSettings


class TokenizerKind(Protocol):
    """What the module of a kind of tokenizer has.

    Attributes:
      SPACES_DIVIDE: whether a space divides words wherever it stands, and what is between two spaces is cut without
        regard to what is around it, so that each piece is encoded once. Where it does not, the space is a token.
    """

    SPACES_DIVIDE: bool

    def cutter(self, settings: TokenizerSettings, words_are_separated: bool) -> TextCutter:
        """Return how text is cut into the words that are counted; spaces are not counted."""
        ...

    def train_vocabulary(
        self, words: Mapping[str, int], settings: TokenizerSettings, characters: str = ""
    ) -> dict[str, int]:
        """Return token -> id; the same counts, in any order, give the same vocabulary.

        A vocabulary of pieces of words has the given characters, whether or not words have them. Raises DataError where
        there is no word, or the size does not do.
        """
        ...

    def read_tokens(self, lines: Iterable[tuple[str, str]], settings: TokenizerSettings) -> Iterator[tuple[str, str]]:
        """Yield (place, token) of the tokens of a vocabulary file, in the order of their ids to be.

        The lines are (place, content), without line ends; places are for messages. Raises DataError where a line is not
        what the kind's vocabulary files have.
        """
        ...

    def build(
        self, vocabulary: Mapping[str, int], settings: TokenizerSettings, words_are_separated: bool
    ) -> tokenizers.Tokenizer:
        """Return the tokenizer of a vocabulary with the special tokens at ids 0 to 3."""
        ...


TOKENIZERS: dict[str, TokenizerKind] = {
    "wordpiece": wordpiece,
    "words": word_level,
    "characters": character_level,
}
