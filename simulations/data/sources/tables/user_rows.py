"""What tables of text have in common: a text, mostly a user, perhaps a split and a time."""

import functools
import hashlib
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from fedlm.fedlm_client.text.text_examples import ExampleCut, examples_of
from fedlm.fl_core.errors import ConfigurationError, DataError, setting
from fedlm.simulations.data.client_text import ClientText, OrderForm, SkippedCounts
from fedlm.simulations.data.sources.chat_templates import ASSISTANT, load_template, template_files
from fedlm.simulations.data.sources.orders import EXPECTED, read_order
from fedlm.simulations.data.sources.tables.byte_parts import unreadable

NOT_UTF8 = "bytes that are not UTF-8"
"""Why rows of undecodable bytes are left out."""

SPLIT_NAMES = {
    "train": "train",
    "heldout": "heldout",
    "validation": "heldout",
    "valid": "heldout",
    "dev": "heldout",
    "test": "test",
}
"""Which split is meant by the names that people give them."""

_LARGEST_WHOLE_FLOAT = 2.0**53


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """Which fields of a row mean what."""

    user: str | None = "user"
    """Name of the field that says whose text it is: a string or a whole number; 12.0 is 12. Rows without a user are
    left out, and counted. Give None if texts have no users: each row is then a document, and a client of its own."""
    text: str = "text"
    """Name of the field with the text."""
    split: str | None = None
    """Name of a field that says train, heldout (or validation, valid, dev) or test. Without it, users are split
    80/10/10."""
    order: str | None = None
    """Name of a field that puts a user's rows in order: whole numbers, or ISO 8601 times, such as 2026-01-31 or
    2026-01-31T18:30:00, in UTC if they name no zone. All must have one form: Unix seconds among times, dates among
    times of day, or zones in some, are refused."""
    examples: ExampleCut | None = None
    """What makes an example: each sentence of a text, or each text as a whole. If not given, sentences where there are
    users, and texts where there are documents."""
    prompt: str | None = None
    """Instead of a text: name of the field with a prompt. A row is then one example, its prompt and its completion, and
    `fedlm pretrain` trains on the completion alone. Both are encoded apart and as they are, so a space between them
    must stand in one of them."""
    completion: str | None = None
    """Name of the field with the completion of the prompt."""
    messages: str | None = None
    """Instead of prompt and completion: name of the field with a conversation, a list of objects with role and content.
    Its last message must be the assistant's, and is the completion. Everything before it is the prompt."""
    chat_template: Path | None = None
    """How messages are written: a chat_template.jinja, a tokenizer_config.json that has one, or the folder of a model
    with one of these, which may come from `fedlm model import`."""

    words_are_separated = False
    texts_are_names: ClassVar[bool] = False
    """Whether a text is a name, a string or a whole number as a user is, and one example as it is."""

    def __post_init__(self) -> None:
        if (self.prompt is None) != (self.completion is None):
            raise ConfigurationError(
                f"{setting('prompt')} and {setting('completion')} go together; give both, or neither"
            )
        if (self.messages is None) != (self.chat_template is None):
            raise ConfigurationError(
                f"{setting('messages')} and {setting('chat_template')} go together; give both, or neither"
            )
        if self.messages is not None and self.prompt is not None:
            raise ConfigurationError(
                f"{setting('messages')} stand in place of {setting('prompt')} and {setting('completion')}; leave out "
                "one of them"
            )
        unused = [name for name, default in (("text", "text"), ("examples", None)) if getattr(self, name) != default]
        if self.has_completions and unused:
            raise ConfigurationError(f"{' and '.join(unused)} does nothing where a row has a completion; leave it out")

    @property
    def has_completions(self) -> bool:
        """Whether a row is a prompt and what completes it."""
        return self.prompt is not None or self.messages is not None

    @property
    def without_users(self) -> bool:
        """Whether nobody is named for the texts."""
        return self.user is None

    @property
    def naming(self) -> str:
        """Say, as advice, how fields are named."""
        of_rows = ("prompt", "completion", "messages") if self.has_completions else ("text",)
        named = ", ".join(setting(name) for name in ("user", *of_rows, "split", "order"))
        return f"Name the fields with {named}; where texts have no users, say {setting('user', 'None')}."

    @functools.cached_property
    def fields(self) -> list[str]:
        """The names of the fields that are read, each once."""
        texts = (self.prompt, self.completion, self.messages) if self.has_completions else (self.text,)
        named = (self.user, *texts, self.split, self.order)
        return list(dict.fromkeys(name for name in named if name is not None))

    def template_files(self) -> list[Path]:
        """The files that say how messages are written; raises DataError where they are missing."""
        return [] if self.chat_template is None else template_files(self.chat_template)


def existing_files(paths: Sequence[Path]) -> list[Path]:
    """Return the same paths; raises DataError where there is none, one is not a file, or one is named twice."""
    if not paths:
        raise DataError("no file is named, expected at least one to import.")
    name, times = Counter(map(os.path.realpath, paths)).most_common(1)[0]
    if times > 1:
        raise DataError(f"{name}: is named {times} times, and its text would count as often; name it once.")
    for path in paths:
        try:
            if path.is_file():
                continue
            found = "a folder" if path.is_dir() else "not a regular file" if path.exists() else "nothing"
        except OSError as error:  # a folder above may not be entered
            raise unreadable(path, error) from error
        raise DataError(f"{path}: found {found}, expected a file to import.")
    return list(paths)


def check_columns(found: Sequence[str], settings: RowSettings, place: str, advice: str = "") -> None:
    """Raise DataError unless a table has the columns that are read, each once.

    `place` names the file in messages; `advice` says what else to do about a missing column and begins with a space.
    """
    _check_fields(found, settings, place, advice)
    for name in settings.fields:
        if found.count(name) > 1:
            raise DataError(f"{place}: found {found.count(name)} columns {name!r}, expected one. Rename the others.")


def document_id(words: Sequence[str], split: str | None) -> str:
    """Name a text that nobody is named for: the first 128 bits of a SHA-256, in hexadecimal.

    Texts of the same words have the same name, so that no copy of a training text is in another split, unless the
    source puts it there.
    """
    return hashlib.sha256(f"{split}:{' '.join(words)}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def row_text(
    row: Mapping[str, Any], settings: RowSettings, place: str, skipped: SkippedCounts, *, split: str | None = None
) -> Iterator[ClientText]:
    """Yield the text of a row, or count why there is none.

    `place` is file and line or row, for messages; the row belongs to `split` where no field says it.
    """
    _check_fields(row.keys(), settings, place)
    client_id = None
    if settings.user is not None:
        user = row[settings.user]
        if _is_missing(user):
            skipped.add("row without a user", place=place)
            return
        client_id = _name(user, settings.user, place)
    read = _pair if settings.has_completions else _text_name if settings.texts_are_names else _sentences
    found = read(row, settings, place, skipped)
    if found is None:
        return
    split = split if settings.split is None else _split(row[settings.split], settings.split, place)
    text = ClientText(
        client_id=document_id(found.words, split) if client_id is None else client_id,
        sentences=found.sentences,
        split=split,
        completions=found.completions,
        place=place,
    )
    yield text if settings.order is None else in_order(text, settings.order, row[settings.order])


def in_order(text: ClientText, field: str, value: object) -> ClientText:
    """Say of a text what its field of that name, with that value, says of its place among others.

    Raises DataError where that is neither a number nor a time.
    """
    order = read_order(value)
    if order is None:
        raise DataError(f"{text.place}: {field!r} is {_shown(value)}, expected {EXPECTED}.")
    return text._replace(order=order.value, order_form=OrderForm(order.form, field, _shown(value)))


class _Content(NamedTuple):
    """What a row has to be trained on; for a document without a name, also what names it."""

    words: Sequence[str]
    sentences: list[str]
    completions: list[str] | None = None


def _sentences(row: Mapping[str, Any], settings: RowSettings, place: str, skipped: SkippedCounts) -> _Content | None:
    """Return a row's text, or count why there is none."""
    text = _string(row, settings.text, place)
    words = text.split()
    examples = examples_of(text, settings.examples or ("sentences" if settings.user is not None else "texts"))
    if not examples:
        skipped.add("text that is not Unicode" if words else "empty text", place=place)
        return None
    return _Content(words, examples)


def _text_name(row: Mapping[str, Any], settings: RowSettings, place: str, skipped: SkippedCounts) -> _Content | None:
    """Return a row's text that is a name, or count why there is none."""
    if _is_missing(row[settings.text]):
        skipped.add(f"row without '{settings.text}'", place=place)
        return None
    name = _name(row[settings.text], settings.text, place)
    return _Content([name], [name])


def _string(row: Mapping[str, Any], field: str, place: str) -> str:
    """Return a field's text, empty where it is missing."""
    text = row[field]
    if _is_missing(text):
        return ""
    if not isinstance(text, str):
        raise DataError(f"{place}: {field!r} is {_shown(text)}, expected a string.")
    return text


def _pair(row: Mapping[str, Any], settings: RowSettings, place: str, skipped: SkippedCounts) -> _Content | None:
    """Return a row's prompt and completion, or count why there are none."""
    if settings.messages is not None:
        assert settings.chat_template is not None
        messages = [] if _is_missing(row[settings.messages]) else row[settings.messages]
        if not isinstance(messages, list) or not all(map(_is_message, messages)):
            raise DataError(
                f"{place}: {settings.messages!r} is {_shown(messages)}, expected a list of objects with a role and a "
                "content, both strings."
            )
        if len(messages) < 2 or messages[-1]["role"] != ASSISTANT:
            skipped.add(f"conversation that does not end with an answer of the role {ASSISTANT!r}", place=place)
            return None
        pair = load_template(settings.chat_template).pair(messages, place)
    else:
        assert settings.prompt is not None
        assert settings.completion is not None
        pair = _string(row, settings.prompt, place), _string(row, settings.completion, place)
    if not all(text.strip() for text in pair):
        skipped.add("empty prompt or completion", place=place)
        return None
    return _Content(pair, [pair[0]], [pair[1]])


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(name), str) for name in ("role", "content"))


def _check_fields(found: Collection[str], settings: RowSettings, place: str, advice: str = "") -> None:
    for name in settings.fields:
        if name not in found:
            raise DataError(
                f"{place}: has no field {name!r}, only {', '.join(map(repr, found)) or 'none'}. "
                f"{settings.naming}{advice}"
            )


def _is_missing(value: object) -> bool:
    # A table of numbers has no other way than "not a number" to say that one is missing.
    return value is None or value == "" or (isinstance(value, float) and value != value)


def _name(value: object, field: str, place: str) -> str:
    """Return what names a user or an item; raises DataError where it is no name."""
    if isinstance(value, str):
        return value
    # Whole numbers become floating-point ones where a program had to make room for missing ones among them.
    if isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST_WHOLE_FLOAT:
        return str(int(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise DataError(f"{place}: {field!r} is {_shown(value)}, expected a string or a whole number.")


def _split(split: object, field: str, place: str) -> str:
    if not isinstance(split, str) or split not in SPLIT_NAMES:
        raise DataError(
            f"{place}: {field!r} is {_shown(split)}, expected one of {', '.join(SPLIT_NAMES)}. "
            f"Mend the field, or leave {setting('split')} away: users are then split 80/10/10."
        )
    return SPLIT_NAMES[split]


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
