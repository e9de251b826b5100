"""The characters kind of tokenizer: each character is a token, the space too, as in the published Shakespeare tasks."""

from collections.abc import Iterable, Iterator, Mapping

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from fedlm.fl_core.errors import DataError, setting
from fedlm.models.special_tokens import OOV_ID, SPECIAL_TOKENS
from fedlm.simulations.data.vocabulary.text_cutting import TextCutter
from fedlm.simulations.data.vocabulary.tokenizer_settings import TokenizerSettings

SPACES_DIVIDE = False


def cutter(settings: TokenizerSettings, words_are_separated: bool) -> TextCutter:
    """Cut after every character."""
    steps = [normalizers.NFC(), *([normalizers.Lowercase()] if settings.lowercase else [])]
    return TextCutter(normalizers.Sequence(steps), pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"))


def train_vocabulary(words: Mapping[str, int], settings: TokenizerSettings, characters: str = "") -> dict[str, int]:
    """Number the space, and the most frequent characters; equally frequent ones are taken in alphabetical order."""
    if not (words or characters):
        raise DataError("tokenizer: found no word in the training texts, expected at least one.")
    ranked = sorted({*words, *characters} - {" "}, key=lambda one: (-words.get(one, 0), one))
    kept = [" ", *ranked][: settings.vocabulary_size]
    return {token: id_ for id_, token in enumerate([*SPECIAL_TOKENS, *kept])}


def read_tokens(lines: Iterable[tuple[str, str]], settings: TokenizerSettings) -> Iterator[tuple[str, str]]:
    """Read one character a line, of which the first `vocabulary_size` are used."""
    for number, (place, line) in enumerate(lines):
        if number == settings.vocabulary_size:
            return
        if len(line) != 1:
            raise DataError(
                f"{place}: found {line[:60]!r}, expected one character a line. For a file of `word count` lines give "
                f"{setting('tokenizer', 'words')}."
            )
        yield place, line


def build(
    vocabulary: Mapping[str, int], settings: TokenizerSettings, words_are_separated: bool
) -> tokenizers.Tokenizer:
    """Return a tokenizer whose decoder joins characters without spaces between them."""
    built = tokenizers.Tokenizer(models.WordLevel(dict(vocabulary), unk_token=SPECIAL_TOKENS[OOV_ID]))
    built.normalizer, built.pre_tokenizer = cutter(settings, words_are_separated)
    built.decoder = decoders.Fuse()
    return built
