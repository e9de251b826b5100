"""Tokenizers: trained or given, kept as one JSON file, and fast at encoding many texts."""

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import tokenizers
from numpy.typing import NDArray

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.errors import DataError
from fedlm.models.arguments import StrPath, checked_arguments
from fedlm.models.shown import in_a_line
from fedlm.models.special_tokens import KNOWN_SPECIAL_TOKENS, OOV_ID, OWN, SpecialTokens
from fedlm.simulations.data.vocabulary.piece_cache import PieceCache
from fedlm.simulations.data.vocabulary.text_cutting import LONGEST_WORD
from fedlm.simulations.data.vocabulary.tokenizer_kinds import TOKENIZERS
from fedlm.simulations.data.vocabulary.tokenizer_settings import DEFAULT_SETTINGS, TokenizerSettings

_UNSEEN = range(OOV_ID)  # PAD, BOS and EOS
_LONGEST_THAT_IS_READ = 10 * LONGEST_WORD  # which a tokenizer that is given may say, as clients of plans take it
_MAKE_ANOTHER = "Train the tokenizer by importing the data again, or give another vocabulary."


class Tokenizer:
    """A tokenizer that writes no special token into what it encodes, defined in the `tokenizers` library's JSON form.

    No text, whatever it says, can encode to PAD, BOS or EOS: the names of the special tokens have ids but are not
    matched in text. What the vocabulary does not have is one OOV token a word. Raises DataError where the definition
    has neither our special tokens at ids 0 to 3 nor Gemma's, or text could encode to them.

    Attributes:
      special_tokens: which these are.

    Example:
      >>> tokenizer = Tokenizer.train(count_words(["the cat sat on the mat"]), TokenizerSettings(vocabulary_size=60))
      >>> tokenizer.decode(tokenizer.encode_batch(["the mat"])[0])
      'the mat'
    """

    @checked_arguments
    def __init__(self, definition: dict[str, Any]) -> None:
        self._json = json.dumps(definition, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        vocabulary = (definition.get("model") or {}).get("vocab")
        found = sorted(vocabulary, key=vocabulary.__getitem__)[:4] if isinstance(vocabulary, dict) else []
        known = {special_tokens.names: special_tokens for special_tokens in KNOWN_SPECIAL_TOKENS}
        if tuple(found) not in known:
            expected = " or ".join(str(list(names)) for names in known)
            raise DataError(f"tokenizer: ids 0 to {OOV_ID} are {found}, expected {expected}. {_MAKE_ANOTHER}")
        self.special_tokens: SpecialTokens = known[tuple(found)]
        longest = definition["model"].get("max_input_chars_per_word", 0)
        if isinstance(longest, int) and longest > _LONGEST_THAT_IS_READ:
            raise DataError(
                f"tokenizer: max_input_chars_per_word is {longest}, expected {_LONGEST_THAT_IS_READ} at most, as the "
                f"time that a word takes grows faster than its letters. {_MAKE_ANOTHER}"
            )
        self._tokenizer = tokenizers.Tokenizer.from_str(self._json)
        if self._tokenizer.padding or self._tokenizer.truncation:
            raise DataError(f"tokenizer: pads or cuts what it encodes, which training does itself. {_MAKE_ANOTHER}")
        for id_ in _UNSEEN:
            name = self.special_tokens.names[id_]
            if id_ in self._tokenizer.encode(name, add_special_tokens=False).ids:
                raise DataError(f"tokenizer: the text {name} encodes to the special token {name}. {_MAKE_ANOTHER}")
        # Whether what stands between two spaces is encoded without regard to what is around it.
        spaces_divide = not definition.get("added_tokens") and _cutting(definition) in _known_cuttings()
        self._cache = PieceCache(self._encode_whole) if spaces_divide else None

    def __repr__(self) -> str:
        return in_a_line(self, vocabulary_size=self.vocabulary_size, fingerprint=self.fingerprint[:16])

    @classmethod
    @checked_arguments
    def train(
        cls,
        words: Mapping[str, int],
        settings: TokenizerSettings = DEFAULT_SETTINGS,
        words_are_separated: bool = False,
        characters: str = "",
    ) -> Self:
        """Train a vocabulary on counted words; the same counts give the same tokenizer, byte for byte.

        The words are those that `count_words` with the same settings gives. Little text gives a smaller vocabulary.
        One of pieces of words has the given characters for certain. Raises DataError where there is no word, or the
        vocabulary cannot hold the words' characters.
        """
        kind = TOKENIZERS[settings.tokenizer]
        vocabulary = kind.train_vocabulary(words, settings, characters)
        return cls(json.loads(kind.build(vocabulary, settings, words_are_separated).to_str()))

    @classmethod
    @checked_arguments
    def load(cls, path: StrPath) -> Self:
        """Read a tokenizer from a JSON file; DataError where that is missing, damaged or not such a tokenizer."""
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

    @checked_arguments
    def save(self, path: StrPath) -> None:
        """Write the tokenizer as canonical JSON, which the `tokenizers` library also reads."""
        write_atomically(Path(path), self.to_json())

    def to_json(self) -> str:
        """Return the tokenizer as canonical JSON, which the `tokenizers` library also reads."""
        return self._json

    @checked_arguments
    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return the token ids of each text, int32 `[tokens]`, without special tokens other than OOV."""
        if self._cache is not None:
            return self._cache.encode_batch(texts)
        return [np.asarray(ids, np.int32) for ids in self._encode_whole(texts)]

    def _encode_whole(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    @checked_arguments
    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """Return the text of token ids; PAD, BOS and EOS are left out."""
        return self._tokenizer.decode([int(id_) for id_ in ids if id_ not in _UNSEEN], skip_special_tokens=False)

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
    """Return how often each word occurs after normalization and splitting, as the settings' tokenizer needs it.

    Words are separated where there are single spaces between them already. Words above `LONGEST_WORD` letters are left
    out. The texts are read once.
    """
    return TOKENIZERS[settings.tokenizer].cutter(settings, words_are_separated).count_words(texts)


@functools.cache
def _known_cuttings() -> list[list[Any]]:
    vocabulary = {token: id_ for id_, token in enumerate(OWN.names)}
    return [
        _cutting(json.loads(kind.build(vocabulary, TokenizerSettings(lowercase=lowercase), separated).to_str()))
        for kind in TOKENIZERS.values()
        if kind.SPACES_DIVIDE
        for lowercase in (True, False)
        for separated in (True, False)
    ]


def _cutting(definition: dict[str, Any]) -> list[Any]:
    return [definition.get("normalizer"), definition.get("pre_tokenizer")]
