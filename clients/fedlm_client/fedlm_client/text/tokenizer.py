"""WordPiece from the JSON that a server sends, as the library tokenizers encodes with it; docs/protocol.md says how."""

import json
import unicodedata
from collections.abc import Iterator
from typing import Any

from ..errors import PlanError

_CHINESE = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F)),
    *((0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)
_WHITE = " \t\n\r\x0b\x0c\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


_LONGEST_WORD = 1000  # letters, since what a word takes grows with the square of its length


class WordPiece:
    """A tokenizer; `encode` gives ids."""

    def __init__(self, content: bytes):
        """Read it; raises PlanError where it is damaged, or of another kind."""
        try:
            found = json.loads(content)
            kinds = [found[name]["type"] for name in ("normalizer", "pre_tokenizer", "model")]
            if kinds != ["BertNormalizer", "BertPreTokenizer", "WordPiece"] or found.get("added_tokens"):
                raise PlanError(
                    f"the server's tokenizer is of {', '.join(kinds)}, but this client knows WordPiece alone"
                )
            model, self._rules = found["model"], _rules(found["normalizer"])
            self._ids: dict[str, int] = {str(piece): _whole(number) for piece, number in model["vocab"].items()}
            self._prefix = str(model["continuing_subword_prefix"])
            self._longest = _whole(model["max_input_chars_per_word"], _LONGEST_WORD + 1)
            self._unknown = self._ids[model["unk_token"]]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise PlanError(f"the server's tokenizer cannot be read ({type(error).__name__}: {error})") from error

    def encode(self, text: str) -> list[int]:
        """Give the ids of a text's pieces; what the vocabulary does not have is one unknown piece a word."""
        return [piece for word in _words(_normalized(text, self._rules)) for piece in self._pieces(word)]

    def _pieces(self, word: str) -> list[int]:
        if len(word) > self._longest:
            return [self._unknown]
        found, start = [], 0
        while start < len(word):
            prefix, end = self._prefix if start else "", len(word)
            while end > start and prefix + word[start:end] not in self._ids:
                end -= 1
            if end == start:
                return [self._unknown]
            found.append(self._ids[prefix + word[start:end]])
            start = end
        return found


def _whole(found: Any, below: int = 1 << 31) -> int:
    if type(found) is not int or not 0 <= found < below:
        raise ValueError(f"{str(found)[:100]!r} where a number below {below} belongs")
    return found


def _rules(normalizer: dict[str, Any]) -> dict[str, bool]:
    lowercase, accents = normalizer["lowercase"], normalizer["strip_accents"]
    return {
        "clean": normalizer["clean_text"],
        "chinese": normalizer["handle_chinese_chars"],
        "accents": lowercase if accents is None else accents,
        "lowercase": lowercase,
    }


def _normalized(text: str, rules: dict[str, bool]) -> str:
    if rules["clean"]:
        text = "".join(" " if one in _WHITE else one for one in text if not _is_control(one))
    if rules["chinese"]:
        text = "".join(f" {one} " if any(a <= ord(one) <= b for a, b in _CHINESE) else one for one in text)
    if rules["accents"]:
        text = "".join(one for one in unicodedata.normalize("NFD", text) if unicodedata.category(one) != "Mn")
    # Letter by letter: the rule for a sigma at a word's end is not applied.
    return "".join(one.lower() for one in text) if rules["lowercase"] else text


def _is_control(one: str) -> bool:
    return one in "\0\ufffd" or (one not in "\t\n\r" and unicodedata.category(one) in ("Cc", "Cf", "Co", "Cs"))


def _words(text: str) -> Iterator[str]:
    """Cut at white space, and around each sign of punctuation."""
    word = ""
    for one in text:
        mark = _is_punctuation(one)
        if mark or one in _WHITE:
            if word:
                yield word
            word = ""
            if mark:
                yield one
        else:
            word += one
    if word:
        yield word


def _is_punctuation(one: str) -> bool:
    return (one.isascii() and one.isprintable() and not one.isalnum() and one != " ") or unicodedata.category(one)[
        0
    ] == "P"
