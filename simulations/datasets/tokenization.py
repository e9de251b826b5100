"""WordPiece tokenization: lower-cased, BERT-style words cut into pieces of a trained vocabulary."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from fl_core.errors import DataError
from models.special_tokens import BOS_ID, EOS_ID, OOV_ID, PAD_ID, SPECIAL_TOKENS

CONTINUATION = "##"
MINIMUM_FREQUENCY = 2
# Each of the many characters that occur hardly ever would take one of the vocabulary's places.
CHARACTER_COVERAGE = 0.9999


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings:
    """What tokenizer to train."""

    vocabulary_size: int = 4096
    """Tokens of the vocabulary at most, special tokens and characters included."""


DEFAULT_SETTINGS = TokenizerSettings()


class Tokenizer:
    """A trained WordPiece tokenizer that writes no special token into what it encodes.

    The names of the special tokens have ids but are not matched in text, so no text, whatever it says, can
    encode to PAD, BOS or EOS. A word with a character outside the vocabulary, or of more than 100 characters,
    is one OOV token.

    Args:
      definition: the tokenizer in the JSON form of the `tokenizers` library.

    Raises:
      DataError: the definition is not a WordPiece tokenizer with our special tokens at ids 0 to 3.
    """

    def __init__(self, definition: dict[str, Any]) -> None:
        self._json = json.dumps(definition, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        vocabulary = (definition.get("model") or {}).get("vocab")
        found = [token for token, id_ in sorted(_items(vocabulary), key=lambda item: item[1])][:4]
        if tuple(found) != SPECIAL_TOKENS:
            raise DataError(
                f"tokenizer: ids 0 to {OOV_ID} are {found}, expected {list(SPECIAL_TOKENS)}. "
                "Train the tokenizer by importing the data again."
            )
        self._tokenizer = tokenizers.Tokenizer.from_str(self._json)

    @classmethod
    def train(
        cls, words: Mapping[str, int], settings: TokenizerSettings = DEFAULT_SETTINGS, words_are_separated: bool = False
    ) -> Self:
        """Train a vocabulary on counted words; the same counts give the same tokenizer, byte for byte.

        Args:
          words: how often each word occurs, as `count_words` with the same settings gives it.
          settings: kind and size of the vocabulary. Little text gives a smaller one.
          words_are_separated: as `count_words` was told.

        Raises:
          DataError: there is no word, or the vocabulary cannot hold the words' characters.
        """
        known = _frequent_characters(words)
        words = {word: words[word] for word in sorted(words) if known.issuperset(word)}
        initial = sorted({word[0] for word in words})
        following = sorted({CONTINUATION + character for word in words for character in word[1:]})
        smallest = len(SPECIAL_TOKENS) + len(initial) + len(following)
        if not words:
            raise DataError("tokenizer: found no word in the training texts, expected at least one.")
        if settings.vocabulary_size < smallest:
            raise DataError(
                f"tokenizer: a vocabulary of {settings.vocabulary_size} cannot hold the special tokens and characters "
                f"of the training texts. Ask for at least {smallest}."
            )
        vocabulary = _train_vocabulary(words, settings.vocabulary_size, following)
        return cls(json.loads(_build(vocabulary).to_str()))

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a tokenizer from a JSON file.

        Raises:
          DataError: the file is missing, damaged or not such a tokenizer.
        """
        path = Path(path)
        try:
            return cls(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError as error:
            raise DataError(f"{path}: there is no such file, expected a tokenizer. Import the data again.") from error
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        except Exception as error:  # the tokenizers library raises bare Exception for a wrong definition
            raise DataError(
                f"{path}: found a damaged file ({error}), expected a tokenizer in JSON. Import the data again."
            ) from error

    def save(self, path: Path | str) -> None:
        """Write the tokenizer as canonical JSON, which the `tokenizers` library also reads."""
        Path(path).write_text(self._json, encoding="utf-8")

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens other than OOV."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids; PAD, BOS and EOS are left out."""
        unseen = (PAD_ID, BOS_ID, EOS_ID)
        return self._tokenizer.decode([int(id_) for id_ in ids if id_ not in unseen], skip_special_tokens=False)

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens, special tokens included."""
        return self._tokenizer.get_vocab_size()

    @property
    def fingerprint(self) -> str:
        """The SHA-256, in hexadecimal, of the tokenizer's canonical JSON (sorted keys, no spaces)."""
        return hashlib.sha256(self._json.encode()).hexdigest()


def count_words(
    texts: Iterable[str], settings: TokenizerSettings = DEFAULT_SETTINGS, words_are_separated: bool = False
) -> Counter[str]:
    """Return how often each word occurs after normalization and splitting.

    Args:
      texts: read once.
      settings: of the tokenizer that the counts are for.
      words_are_separated: whether texts are words with single spaces between them already.
    """
    normalizer, splitter = _normalizer(), pre_tokenizers.BertPreTokenizer()
    counts = Counter[str]()
    for text in texts:
        normalized = normalizer.normalize_str(text)
        counts.update(word for word, _ in splitter.pre_tokenize_str(normalized))
    return counts


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


def _train_vocabulary(words: dict[str, int], size: int, continuations: list[str]) -> dict[str, int]:
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
        special_tokens=[*SPECIAL_TOKENS, *continuations],
        continuing_subword_prefix=CONTINUATION,
    )
    trainee.train_from_iterator(_repeat_words(words), trainer)
    return trainee.get_vocab(with_added_tokens=True)


def _repeat_words(words: dict[str, int], per_text: int = 1000) -> Iterator[str]:
    for word, count in words.items():
        for first in range(0, count, per_text):
            yield " ".join([word] * min(per_text, count - first))


def _build(vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
    by_id = dict(sorted(vocabulary.items(), key=lambda item: item[1]))
    built = tokenizers.Tokenizer(
        models.WordPiece(by_id, unk_token=SPECIAL_TOKENS[OOV_ID], continuing_subword_prefix=CONTINUATION)
    )
    built.normalizer = _normalizer()
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    built.decoder = decoders.WordPiece(prefix=CONTINUATION)
    return built


def _normalizer() -> normalizers.BertNormalizer:
    return normalizers.BertNormalizer(lowercase=True)


def _items(vocabulary: object) -> Iterable[tuple[str, int]]:
    return vocabulary.items() if isinstance(vocabulary, dict) else ()
