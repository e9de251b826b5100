"""From texts to tokens that a model continues, and back."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedlm.fl_core.errors import DataError
from fedlm.fl_core.text_encodings import utf8_text
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer

_CUT_OFF = "\N{REPLACEMENT CHARACTER}"
"""What a character looks like of which not all bytes are there yet."""
_SETTLED_AT_ONCE, _KEPT = 32, 16
"""Tokens that a stream takes for certain at once, about, and those at the end that it does not."""


def prompt_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Encode texts to be continued: BOS and their tokens; an empty text is BOS alone. Raises DataError where one is
    not Unicode."""
    for number, text in enumerate(texts, 1):
        try:
            text.encode()
        except UnicodeEncodeError as error:  # of bytes that are not UTF-8 on a command line, or of half a character
            raise DataError(
                f"prompt {number} has {text[error.start]!a} as its character {error.start + 1}, which is not Unicode; "
                "give a text in UTF-8"
            ) from error
    return [[tokenizer.special_tokens.bos, *ids.tolist()] for ids in tokenizer.encode_batch(texts)]


def completion_text(tokenizer: Tokenizer, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    """Decode what follows a prompt as it reads there, with the space that parts the two, if any does."""
    before, whole = tokenizer.decode(prompt), tokenizer.decode([*prompt, *tokens])
    return whole.removeprefix(before) if whole.startswith(before) else tokenizer.decode(tokens)


class TextStream:
    """Decodes a completion while it grows, and says what is new.

    Each token is decoded a few times, however long the completion gets: what is certain is not decoded again.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]):
        self._tokenizer, self._context = tokenizer, list(prompt)
        self._certain, self._settled = "", 0  # text that is certain and not shown, and how many tokens have given it
        self._tried = 0  # tokens when it was last tried to settle more
        self._shown = 0  # letters of what is shown that are not settled

    def more(self, tokens: Sequence[int], whole: bool = False) -> str:
        """Return what to show after what was shown, given all tokens so far.

        The last word is kept back until there is another or the text is `whole`, for the next token may still change
        it.
        """
        text = self._certain + completion_text(self._tokenizer, self._context, tokens[self._settled :])
        end = len(text) if whole else max(text.rfind(" "), text.rfind("\n"), 0)
        end = len(text[:end].rstrip(_CUT_OFF)) if not whole else end
        shown, self._shown = self._shown, max(self._shown, end)
        if len(tokens) - self._tried >= _SETTLED_AT_ONCE:
            self._settle(tokens)
        return text[shown : max(shown, end)]

    def _settle(self, tokens: Sequence[int]) -> None:
        """Take all but the last tokens for certain, where what follows reads the same without those before them."""
        new, self._tried = tokens[self._settled :], len(tokens)
        settled = new[: len(new) - _KEPT]
        context = [*self._context, *settled][-_KEPT:]
        text, before, after = (
            completion_text(self._tokenizer, one, of)
            for one, of in ((self._context, new), (self._context, settled), (context, new[len(settled) :]))
        )
        if before + after == text:
            certain = self._certain + before
            done = min(self._shown, len(certain))
            self._certain, self._shown = certain[done:], self._shown - done
            self._context, self._settled = context, self._settled + len(settled)


def read_prompts(path: Path) -> list[str]:
    """Read prompts from a file: of JSON Lines (`.jsonl`) the field `prompt` of each, of any other the lines.

    Empty lines are passed over. Raises DataError where the file cannot be read or a line is not such.
    """
    try:
        lines = utf8_text(path, path.read_bytes()).split("\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}), expected prompts; correct the path") from error
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if path.suffix.lower() != ".jsonl":
        return [line.removesuffix("\r") for _, line in filled]
    return [_prompt_of(f"{path}, line {number}", line) for number, line in filled]


def _prompt_of(place: str, line: str) -> str:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: found no JSON ({error}), expected an object with the field prompt") from error
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
        raise DataError(f"{place}: found {line[:60]!r}, expected an object with the field prompt, a text")
    return row["prompt"]
