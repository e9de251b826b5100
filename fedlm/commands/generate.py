"""`fedlm generate`: text that the model of a run writes."""

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options, set_up_devices
from fedlm.command_line.progress import EvaluationProgress
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.text_encodings import printable
from fedlm.simulations.generation.generating import GenerationSettings


@dataclass(frozen=True, kw_only=True)
class GenerateCommand:
    """Let the model of a run of any kind, federated, central or imported, continue texts.

    It takes the most likely token each time, so the same command gives the same text, unless you give --temperature. It
    uses the last checkpoint, and of a private run the newest released one. It prints the run's privacy statement once.
    A model that is NOT PRIVATE may repeat what people wrote.
    """

    settings: GenerationSettings
    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    prompt: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Text to continue. Give --prompt several times for several texts. An empty one begins a text."""
    prompts: Path | None = None
    """File of prompts, one a line. If it ends in .jsonl, the field prompt of each line."""
    json: bool = False
    """Print JSON Lines: first a line of the run and its privacy, then a line for each prompt. It has the completion,
    its tokens (ids) and why it ends. eos: the model ended the text. max_tokens: it has as many as asked for.
    max_length: the model cannot read longer texts."""
    vocabulary: Path | None = None
    """Tokenizer: its JSON file, or the folder of a data set. If not given, that of the run's data set."""


def main(argv: list[str]) -> int:
    """Run `fedlm generate`."""
    command = read_options(GenerateCommand, argv, "fedlm generate")
    from fedlm.simulations.generation.texts import read_prompts

    texts = [*command.prompt, *(read_prompts(command.prompts) if command.prompts else [])]
    if not texts:
        raise ConfigurationError('there is no prompt; give --prompt TEXT (--prompt "" begins a text) or --prompts FILE')
    # One device: on a CPU it has all cores, which share the reading of weights.
    set_up_devices(1)
    _generate(command, texts)
    return 0


def _generate(command: GenerateCommand, texts: list[str]) -> None:
    import jax

    from fedlm.models.precision import precision_scope, resolve_precision, with_precision
    from fedlm.simulations.generation.generating import Generator
    from fedlm.simulations.generation.texts import TextStream, completion_text, prompt_tokens
    from fedlm.simulations.weights.exporting import read_run

    stored = read_run(command.run, command.vocabulary)
    tokenizer, precision = stored.tokenizer, resolve_precision("auto", jax.default_backend())
    model = with_precision(stored.entry.build(str(command.run), stored.entry.config), precision)
    prompts = prompt_tokens(tokenizer, texts)
    if command.json:
        print(json_text({"run": str(command.run), "privacy": stored.privacy}), flush=True)
    else:
        print(f"privacy: {stored.privacy}", file=sys.stderr, flush=True)
    with precision_scope(precision):
        generator = Generator(model, stored.params)
        if len(texts) == 1 and not command.json and sys.stdout.isatty():
            stream = TextStream(tokenizer, prompts[0])
            _write(texts[0])
            [completion] = generator.generate(prompts, command.settings, lambda _, tokens: _write(stream.more(tokens)))
            _write(stream.more(completion.tokens, whole=True) + "\n")
            return
        with EvaluationProgress("generating", "prompts") as progress:
            completions = generator.generate(prompts, command.settings, observe=progress.update)
    for number, (text, prompt, completion) in enumerate(zip(texts, prompts, completions, strict=True)):
        written = completion_text(tokenizer, prompt, completion.tokens)
        if command.json:
            record = {"prompt": text, "completion": written, "tokens": completion.tokens, "end": completion.end}
            print(json_text(record))
        else:
            _write("\n" * bool(number) + text + written + "\n")


def _write(text: str) -> None:
    """Write to standard output at once, without what a terminal would take for a command."""
    print(printable(text, kept="\n\t"), end="", flush=True)


COMMAND = Command(GenerateCommand, main)
