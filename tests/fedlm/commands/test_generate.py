import json

import numpy as np
import pytest

from fedlm.commands import generate
from fedlm.simulations.evaluation.trained_models import open_model
from fedlm.simulations.generation.generating import GenerationSettings, Generator
from fedlm.simulations.generation.texts import TextStream, completion_text, prompt_tokens
from tests.support.untrained import untrained_run


@pytest.fixture(scope="module")
def run(small_store, tmp_path_factory):
    """A run of ours with one checkpoint, of scrambled parameters."""
    folder = untrained_run(tmp_path_factory.mktemp("generate") / "run", model="cifg_tiny", data=small_store)
    trained = open_model(folder)
    return folder, trained.model, trained.params, trained.tokenizer


def lines_of(result):
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.long
def test_prompts_are_continued_as_the_model_says(run, fedlm_here):
    folder, model, params, tokenizer = run
    prompts = ["the file", "", "model server reads the old"]
    words = [word for prompt in prompts for word in ("--prompt", prompt)]
    about, *rows = lines_of(fedlm_here("generate", folder, *words, "--max-tokens", "6", "--json"))
    assert about == {"run": str(folder), "privacy": "NOT PRIVATE"}
    tokens = prompt_tokens(tokenizer, prompts)
    assert tokens[1] == [tokenizer.special_tokens.bos]
    expected = Generator(model, params).generate(tokens, GenerationSettings(max_tokens=6))
    for row, prompt, prompt_ids, completion in zip(rows, prompts, tokens, expected, strict=True):
        text = completion_text(tokenizer, prompt_ids, completion.tokens)
        assert row == {"prompt": prompt, "completion": text, "tokens": completion.tokens, "end": completion.end}


@pytest.mark.long
def test_prompts_of_a_file_and_text_output(run, fedlm_here, tmp_path):
    folder = run[0]
    (tmp_path / "prompts.txt").write_text("the file\n\na model\n")
    (tmp_path / "prompts.JSONL").write_text('{"prompt": "the file"}\n{"prompt": "a model", "more": 1}\n')
    drawn = ("--max-tokens", "5", "--temperature", "0.8", "--top-k", "50", "--top-p", "0.9", "--seed", "4")
    found = [
        lines_of(fedlm_here("generate", folder, "--prompts", tmp_path / f"prompts.{kind}", *drawn, "--json"))
        for kind in ("txt", "JSONL")
    ]
    assert found[0] == found[1]
    assert [row["prompt"] for row in found[0][1:]] == ["the file", "a model"]
    text = fedlm_here("generate", folder, "--prompts", tmp_path / "prompts.txt", *drawn)
    assert text.stdout == "\n".join(f"{row['prompt']}{row['completion']}\n" for row in found[0][1:])
    assert text.stderr.startswith("privacy: NOT PRIVATE\n")


def test_one_prompt_is_streamed_to_a_terminal(run, fedlm_here, monkeypatch):
    folder = run[0]
    words = ("generate", folder, "--prompt", "the file", "--max-tokens", "12")
    expected = fedlm_here(*words).stdout
    written = []

    class Terminal:
        def isatty(self):
            return True

        def flush(self):
            pass

        def write(self, text):
            written.append(text)

    class System:
        stdout, stderr = Terminal(), Terminal()

    monkeypatch.setattr(generate, "sys", System)
    monkeypatch.setattr(generate, "print", lambda text, **options: written.append(text), raising=False)
    assert fedlm_here(*words).returncode == 0
    assert "".join(written[1:]) == expected
    assert len([text for text in written if text.strip()]) > 3


@pytest.mark.parametrize("line", ["[1]", "nothing", '{"text": "a"}', '{"prompt": 3}'])
def test_a_line_that_is_no_prompt_is_named(run, fedlm_here, tmp_path, line):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n' + line)
    result = fedlm_here("generate", run[0], "--prompts", tmp_path / "prompts.jsonl")
    assert result.returncode == 2
    assert "prompts.jsonl, line 2: found" in result.stderr


def streamed(tokenizer, prompt, tokens):
    stream = TextStream(tokenizer, prompt)
    shown = [stream.more(tokens[: count + 1]) for count in range(len(tokens))]
    assert sum(map(bool, shown)) > len(tokens) / 10, "words are shown as soon as they are whole"
    return "".join([*shown, stream.more(tokens, whole=True)])


@pytest.mark.parametrize("seed", range(2))
def test_long_texts_are_streamed_as_they_read(run, seed):
    tokenizer = run[3]
    drawn = np.random.default_rng(seed)
    words = drawn.integers(3, tokenizer.vocabulary_size, 400)
    vocabulary = json.loads(tokenizer.to_json())["model"]["vocab"]
    marks = [vocabulary[mark] for mark in (".", ",", "'", "-") if mark in vocabulary]
    within = [number for piece, number in vocabulary.items() if piece.startswith("##")]
    words[150:250] = drawn.choice(within, 100)  # one word of a hundred pieces
    tokens = [int(drawn.choice(marks) if drawn.random() < 0.2 else one) for one in words]
    for prompt in ([1], tokens[:90]):
        text = completion_text(tokenizer, prompt, tokens)
        assert streamed(tokenizer, prompt, tokens) == text
        assert tokenizer.decode(prompt) + text == tokenizer.decode(prompt + tokens)


def test_what_a_stream_decodes_grows_with_the_text_and_not_with_its_square(run, monkeypatch):
    tokenizer, decoded = run[3], 0
    decode = tokenizer.decode

    def counted(tokens):
        nonlocal decoded
        decoded += len(tokens)
        return decode(tokens)

    (tokens,) = prompt_tokens(tokenizer, ["the file server keeps some names of clients, and a list. " * 60])
    monkeypatch.setattr(tokenizer, "decode", counted)
    streamed(tokenizer, tokens[:100], tokens)
    assert decoded < 200 * len(tokens) < len(tokens) ** 2 / 4
