"""Cutting text into the words that are counted."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

LONGEST_WORD = 100
"""Letters of a word at most. A longer one is unknown wherever text is read, and counts for nothing in a vocabulary."""
MOST_PIECES = 1_000_000
"""Distinct pieces of text counted before they are cut into words, which bounds the memory for them."""


class TextCutter(NamedTuple):
    """How text becomes words."""

    normalizer: Normalizer  # what is done to the characters
    splitter: PreTokenizer  # where the result is divided

    def count_words(self, texts: Iterable[str]) -> Counter[str]:
        """Return how often each word of at most `LONGEST_WORD` letters occurs in texts, which are read once.

        What stands between two spaces occurs again and again, so it is counted first and cut once.
        """
        words, pieces = Counter[str](), Counter[str]()
        for text in texts:
            pieces.update(text.split(" "))
            if len(pieces) > MOST_PIECES:
                self._add_words(words, pieces)
                pieces.clear()
        self._add_words(words, pieces)
        return words

    def _add_words(self, words: Counter[str], pieces: Counter[str]) -> None:
        for piece, count in pieces.items():
            for word, _ in self.splitter.pre_tokenize_str(self.normalizer.normalize_str(piece)):
                if len(word) <= LONGEST_WORD:
                    words[word] += count
