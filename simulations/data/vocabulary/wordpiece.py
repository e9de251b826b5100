"""The WordPiece kind of tokenizer: BERT-style words cut into pieces of a vocabulary."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from fedlm.fl_core.errors import DataError, setting
from fedlm.models.special_tokens import OOV_ID, SPECIAL_TOKENS
from fedlm.simulations.data.vocabulary.text_cutting import LONGEST_WORD, TextCutter
from fedlm.simulations.data.vocabulary.tokenizer_settings import TokenizerSettings

SPACES_DIVIDE = True
CONTINUATION = "##"
MINIMUM_FREQUENCY = 2
# Each of the many characters that occur hardly ever would take one of the vocabulary's places.
CHARACTER_COVERAGE = 0.9999

_SPECIAL_TO_BERT = re.compile(r"\[(?:PAD|UNK|CLS|SEP|MASK|unused\d+)\]")


def cutter(settings: TokenizerSettings, words_are_separated: bool) -> TextCutter:
    """Cut as BERT does; punctuation is a word of its own, separated or not."""
    return TextCutter(normalizers.BertNormalizer(lowercase=settings.lowercase), pre_tokenizers.BertPreTokenizer())


def train_vocabulary(words: Mapping[str, int], settings: TokenizerSettings, characters: str = "") -> dict[str, int]:
    """Train pieces of words; little text gives a smaller vocabulary."""
    known = {*_frequent_characters(words), *characters}
    words = {word: words[word] for word in sorted(words) if known.issuperset(word)}
    initial = sorted({word[0] for word in words} | {*characters})
    # A sign of punctuation is a word of its own.
    within_words = {character for word in words for character in word[1:]} | {*filter(str.isalnum, characters)}
    following = sorted(CONTINUATION + character for character in within_words)
    smallest = len(SPECIAL_TOKENS) + len(initial) + len(following)
    if not initial:
        raise DataError("tokenizer: found no word in the training texts, expected at least one.")
    if settings.vocabulary_size < smallest:
        raise DataError(
            f"tokenizer: a vocabulary of {settings.vocabulary_size} cannot hold the special tokens and characters "
            f"of the training texts. Ask for at least {smallest}."
        )
    return _run_trainer(words, settings.vocabulary_size, following + sorted(characters))


def read_tokens(lines: Iterable[tuple[str, str]], settings: TokenizerSettings) -> Iterator[tuple[str, str]]:
    """Read BERT's vocab.txt, of which the special tokens are left out."""
    for place, line in lines:
        if not line or line.split() != [line]:
            raise DataError(
                f"{place}: found {line[:60]!r}, expected one token a line, as in a WordPiece vocab.txt. "
                f"For a file of `word count` lines give {setting('tokenizer', 'words')}."
            )
        if not _SPECIAL_TO_BERT.fullmatch(line):
            yield place, line


def build(
    vocabulary: Mapping[str, int], settings: TokenizerSettings, words_are_separated: bool
) -> tokenizers.Tokenizer:
    """Return a tokenizer that marks the pieces after a word's first with `##`."""
    by_id = dict(sorted(vocabulary.items(), key=lambda item: item[1]))
    built = tokenizers.Tokenizer(
        models.WordPiece(
            by_id,
            unk_token=SPECIAL_TOKENS[OOV_ID],
            max_input_chars_per_word=LONGEST_WORD,
            continuing_subword_prefix=CONTINUATION,
        )
    )
    built.normalizer, built.pre_tokenizer = cutter(settings, words_are_separated)
    built.decoder = decoders.WordPiece(prefix=CONTINUATION)
    return built


def _frequent_characters(words: Mapping[str, int]) -> set[str]:
    """Return the fewest characters that make up `CHARACTER_COVERAGE` of the text."""
    counts = Counter[str]()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    known: set[str] = set()
    missing = (1 - CHARACTER_COVERAGE) * counts.total()
    left = counts.total()
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if left <= missing:
            break
        known.add(character)
        left -= count
    return known


def _run_trainer(words: dict[str, int], size: int, characters: list[str]) -> dict[str, int]:
    """Return token -> id. The trainer numbers continuation characters in the order of a randomly seeded hash
    map and breaks ties between equally frequent merges by these numbers; naming the characters as special
    tokens fixes their numbers, and with them the vocabulary.
    """
    trainee = tokenizers.Tokenizer(models.WordPiece(unk_token=SPECIAL_TOKENS[OOV_ID]))
    trainee.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=MINIMUM_FREQUENCY,
        show_progress=False,
        special_tokens=[*SPECIAL_TOKENS, *characters],
        continuing_subword_prefix=CONTINUATION,
    )
    trainee.train_from_iterator(_repeat_words(words), trainer)
    return trainee.get_vocab(with_added_tokens=True)


def _repeat_words(words: dict[str, int], per_text: int = 1000) -> Iterator[str]:
    for word, count in words.items():
        for first in range(0, count, per_text):
            yield " ".join([word] * min(per_text, count - first))
