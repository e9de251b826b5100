"""Chat templates of published models: from messages to the text that a model reads, in a sandbox.

A template is a program in Jinja2 that comes with a tokenizer. It is rendered as Hugging Face's `transformers` does, but
without the time of day, so that the same messages always give the same text.
"""

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fedlm.fl_core.errors import DataError, setting

TEMPLATE_FILE, CONFIG_FILE = "chat_template.jinja", "tokenizer_config.json"
_ORIGINAL = "original"
"""Folder of an imported model, in a run's, with what was published beside the weights."""
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
ASSISTANT = "assistant"


class ChatTemplate(NamedTuple):
    """A template, and the names of special tokens that it may write."""

    path: Path
    template: Template
    special_tokens: dict[str, str]

    def pair(self, messages: list[dict[str, Any]], place: str) -> tuple[str, str]:
        """Render messages, the last of which is the assistant's, as a prompt and that one as its completion.

        The prompt ends where the template begins an answer; earlier answers are part of it. BOS before and EOS after
        all are left out, since sequences have them anyway. Raises DataError, naming the place, where the template
        refuses the messages, or does not write them one after another.
        """
        prompt, whole = self._render(messages[:-1], place, True), self._render(messages, place, False)
        if not whole.startswith(prompt):
            raise DataError(
                f"{place}: the chat template {self.path} does not write the last message after the earlier ones, so "
                f"nothing shows where the answer begins. Give another template, or fields {setting('prompt')} and "
                f"{setting('completion')}."
            )
        completion, bos, eos = whole[len(prompt) :], self.special_tokens.get("bos_token"), self._eos
        if eos and completion.rstrip().endswith(eos):
            completion = completion.rstrip().removesuffix(eos)
        return prompt.removeprefix(bos or ""), completion

    @property
    def _eos(self) -> str | None:
        return self.special_tokens.get("eos_token")

    def _render(self, messages: list[dict[str, Any]], place: str, answer: bool) -> str:
        try:
            return self.template.render(messages=messages, add_generation_prompt=answer, **self.special_tokens)
        except Exception as error:  # a template is a program, which may fail in any way
            raise DataError(
                f"{place}: the chat template {self.path} refuses it: {_in_a_line(error)}. Mend the row."
            ) from error


def template_files(path: Path) -> list[Path]:
    """Find the files of a template.

    Args:
      path: a file of Jinja2; a tokenizer_config.json that has a template; or a folder with one of these, as a published
        model's or that of a run which `fedlm model import` made.

    Returns:
      The file with the template, and the tokenizer_config.json beside it where that is another.

    Raises:
      DataError: there is none.
    """
    if path.is_dir():
        folders = [path, path / _ORIGINAL]
        found = [folder / name for folder in folders for name in (TEMPLATE_FILE, CONFIG_FILE)]
        path = next((one for one in found if one.is_file() and (one.name == TEMPLATE_FILE or _in_config(one))), path)
    if not path.is_file():
        raise DataError(
            f"{path}: found no chat template, expected {TEMPLATE_FILE}, or {CONFIG_FILE} with one. Give the file of a "
            f"template, or write conversations as fields {setting('prompt')} and {setting('completion')}."
        )
    beside = path.with_name(CONFIG_FILE)
    return [path, beside] if path != beside and beside.is_file() else [path]


@functools.lru_cache(maxsize=1)
def load_template(path: Path) -> ChatTemplate:
    """Read a template; see `template_files`. Raises DataError where there is none, or it is none."""
    file, *_ = files = template_files(path)
    config = next((_read_config(one) for one in files if one.name == CONFIG_FILE), {})
    source = _in_config(file) if file.suffix == ".json" else _read(file)
    if source is None:
        raise DataError(f"{file}: has no chat_template. Give the file of a template.")
    special = {name: _content(files[-1], name, config[name]) for name in _SPECIAL if config.get(name) is not None}
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    try:
        return ChatTemplate(file, environment.from_string(source), special)
    except Exception as error:  # Python compiles what Jinja2 makes of it, and refuses loops within too many others
        raise DataError(f"{file}: is not a chat template ({_in_a_line(error)}). Give another.") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}), expected a chat template.") from error


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: found no JSON ({error}), expected the settings of a tokenizer.") from error
    return config if isinstance(config, dict) else {}


def _in_config(path: Path) -> str | None:
    """Return the template of a tokenizer_config.json, of several the default one; None where it has none."""
    found = _read_config(path).get("chat_template")
    if isinstance(found, list):
        named = (one for one in found if isinstance(one, dict) and one.get("name") == "default")
        found = next(named, {}).get("template")
    return found if isinstance(found, str) else None


def _content(path: Path, name: str, token: Any) -> str:
    content = token.get("content") if isinstance(token, dict) else token
    if not isinstance(content, str):
        raise DataError(f"{path}: {name} is {token!r}, expected a text, or an object with the text as its content.")
    return content


def _in_a_line(error: Exception) -> str:
    """Say what a template has raised, which may hold anything, without what a terminal would take for a command."""
    said = " ".join(str(error).split()).removesuffix(".")
    return "".join(character for character in said if character.isprintable()) or type(error).__name__


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **others: Any) -> str:
    # Jinja2's own filter escapes what HTML has a meaning for.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **others)


def _refuse(message: str) -> None:
    raise TemplateError(message)
