"""The words kind of tokenizer: whole words, the most frequent of which have ids of their own.

Words that a source has separated are taken as they are. Other text is cut as the published Stack Overflow data was:
lower-case, each sign of punctuation a word of its own except apostrophes and hyphens inside words, and `<URL>` whole.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers

from fedlm.fl_core.errors import DataError, setting
from fedlm.models.special_tokens import BOS_ID, EOS_ID, OOV_ID, PAD_ID, SPECIAL_TOKENS
from fedlm.simulations.data.vocabulary.text_cutting import TextCutter
from fedlm.simulations.data.vocabulary.tokenizer_settings import TokenizerSettings

SPACES_DIVIDE = True
URL_WORD = "<URL>"
"""What stands for an address in the published data, the only word with capitals."""

_LETTERS = r"[\p{L}\p{M}\p{N}]+"
_WORD = rf"{URL_WORD}|{_LETTERS}(?:['\-]{_LETTERS})*|\S"
_UNSEEN = "|".join(SPECIAL_TOKENS[id_].strip("[]") for id_ in (PAD_ID, BOS_ID, EOS_ID))


def cutter(settings: TokenizerSettings, words_are_separated: bool) -> TextCutter:
    """Cut at spaces where words are separated, and as the published data was cut where they are not."""
    if words_are_separated:
        # Unlike below, a word here could be spelled like a special token; it is unknown instead.
        spelled_special = normalizers.Replace(Regex(rf"\[(?:{_UNSEEN})\]"), SPECIAL_TOKENS[OOV_ID])
        steps = [*([normalizers.Lowercase()] if settings.lowercase else []), spelled_special]
        splitter: pre_tokenizers.PreTokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        clean = normalizers.BertNormalizer(strip_accents=False, lowercase=settings.lowercase)
        steps = [clean, normalizers.NFC(), normalizers.Replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")]
        splitter = pre_tokenizers.Split(Regex(_WORD), "removed", invert=True)
    if settings.lowercase:
        steps.append(normalizers.Replace(URL_WORD.lower(), URL_WORD))
    return TextCutter(normalizers.Sequence(steps), splitter)


def train_vocabulary(words: Mapping[str, int], settings: TokenizerSettings, characters: str = "") -> dict[str, int]:
    """Number the most frequent words; those that are equally frequent are taken in alphabetical order.

    There are no characters in a vocabulary of words.
    """
    ranked = sorted((-count, word) for word, count in words.items() if word not in SPECIAL_TOKENS)
    if not ranked:
        raise DataError("tokenizer: found no word in the training texts, expected at least one.")
    kept = [word for _, word in ranked[: settings.vocabulary_size]]
    return {token: id_ for id_, token in enumerate([*SPECIAL_TOKENS, *kept])}


def read_tokens(lines: Iterable[tuple[str, str]], settings: TokenizerSettings) -> Iterator[tuple[str, str]]:
    """Read lines `word count`, no more of them than are asked for."""
    before: int | None = None
    for place, line in islice(lines, settings.vocabulary_size):
        word, _, number = line.rpartition(" ")
        if word.split() != [word] or not (number.isascii() and number.isdigit()):
            raise DataError(
                f"{place}: found {line[:60]!r}, expected a word, one space and its count, as in "
                f"stackoverflow.word_count. For a WordPiece vocab.txt give {setting('tokenizer', 'wordpiece')}."
            )
        count = int(number)
        if before is not None and count > before:
            raise DataError(
                f"{place}: found {word!r} with count {count} after a word with count {before}, expected the most "
                "frequent first. Sort the lines by falling count."
            )
        before = count
        yield place, word


def build(
    vocabulary: Mapping[str, int], settings: TokenizerSettings, words_are_separated: bool
) -> tokenizers.Tokenizer:
    """Return a tokenizer; without a decoder of its own, the library joins words by single spaces."""
    built = tokenizers.Tokenizer(models.WordLevel(dict(vocabulary), unk_token=SPECIAL_TOKENS[OOV_ID]))
    built.normalizer, built.pre_tokenizer = cutter(settings, words_are_separated)
    return built
