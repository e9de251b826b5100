"""`fedlm evaluate --tasks` on a run of ours: its numbers recomputed one by one, and its refusals."""

import functools
import json

import jax
import numpy as np
import pytest
from scipy.special import log_softmax

from fedlm.fl_core.errors import DiskError
from fedlm.fl_core.runs.files.checkpoints import Checkpoints
from fedlm.models.registry import create_model
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer

SOLVED = {"question": "the server reads", "choices": ["a model", "no file"], "label": 1, "answer": "some list"}
QUESTIONS = [
    {"question": "the client sends", "choices": ["every value", "a small old thing"], "label": 0},
    {"question": "this round gives", "choices": ["one name", "that large test", "no list"], "label": 2},
    {"question": "a test holds", "choices": ["new things", "old", "the last value"], "label": 1},
    {"question": "which zebra makes", "choices": ["local models", "a name"], "label": 1},
]
STOP = "file"
CHOICE = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}:",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "label",
    "metric_list": [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")],
}
ANSWER = {
    "output_type": "generate_until",
    "doc_to_text": "{{question}}:",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": [STOP], "max_gen_toks": 5},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}


class Alone:
    """The model of a run with nothing around it."""

    def __init__(self, store, params):
        self.tokenizer = Tokenizer.load(store / "tokenizer.json")
        model = create_model("cifg_tiny", self.tokenizer.vocabulary_size)
        self.apply = functools.partial(jax.jit(model.apply), params)

    def encode(self, text):
        return [1, *self.tokenizer.encode_batch([text])[0].tolist()]

    def logits(self, tokens):
        padded = np.zeros((1, 64), np.int32)
        padded[0, : len(tokens)] = tokens
        return np.asarray(self.apply(padded)[0, : len(tokens)], np.float64)

    def log_likelihood(self, context, continuation):
        tokens, before = self.encode(context + continuation), len(self.encode(context))
        rows = log_softmax(self.logits(tokens[:-1]), axis=-1)
        return sum(rows[place - 1, tokens[place]] for place in range(before, len(tokens)))

    def answer(self, context):
        tokens, written = self.encode(context), []
        while len(written) < 5:
            written.append(int(self.logits([*tokens, *written])[-1].argmax()))
            if written[-1] == 2:
                break
        return self.tokenizer.decode(written).split(STOP)[0]


def stored_run(folder, store):
    opened = TokenStore.open(store)
    drawn = create_model("cifg_tiny", opened.vocabulary_size).init(jax.random.key(1))
    params = jax.tree_util.tree_map(lambda leaf: np.asarray(3 * leaf), drawn)
    settings = {"model": "cifg_tiny", "data": str(store), "privacy": "none"}
    with Checkpoints(folder / "checkpoints") as checkpoints:
        checkpoints.save(3, {"params": params}, {"pretraining": settings, "vocabulary": opened.fingerprint})
    return Alone(store, params)


def write_task(folder, name, fields, documents):
    files = {"train": [SOLVED], "test": documents}
    for split, rows in files.items():
        (folder / f"{name}_{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"data_files": {split: str(folder / f"{name}_{split}.jsonl") for split in files}}
    fields = fields | {"task": name, "dataset_path": "json", "dataset_kwargs": data, "metadata": {"version": 2.5}}
    yaml = fields | {"training_split": "train", "test_split": "test"}
    (folder / f"{name}.yaml").write_text(json.dumps(yaml))


def shown(question, solved):
    return f"{SOLVED['question']}: {solved}\n\n{question}:"


@pytest.fixture(scope="module")
def workplace(harness, small_store, tmp_path_factory):
    """A run, tasks on words of its vocabulary, and the model alone."""
    folder = tmp_path_factory.mktemp("tasks")
    alone = stored_run(folder / "run", small_store)
    (folder / "tasks").mkdir()
    write_task(folder / "tasks", "words", CHOICE, QUESTIONS)
    # What the model says is right for two of the four.
    said = [alone.answer(shown(row["question"], SOLVED["answer"])) for row in QUESTIONS]
    answers = [text if number % 2 else f"not {text}" for number, text in enumerate(said)]
    written = [row | {"answer": answer} for row, answer in zip(QUESTIONS, answers, strict=True)]
    write_task(folder / "tasks", "answers", ANSWER, written)
    write_task(folder / "tasks", "fixed", CHOICE | {"num_fewshot": 0}, QUESTIONS)
    write_task(folder / "tasks", "running_code", CHOICE | {"unsafe_code": True}, QUESTIONS)
    write_task(folder / "tasks", "sights", CHOICE | {"doc_to_image": ["question"]}, QUESTIONS)
    write_task(folder / "tasks", "beams", ANSWER | {"generation_kwargs": {"until": [STOP], "num_beams": 2}}, written)
    write_task(folder / "tasks", "endless", ANSWER | {"generation_kwargs": {"max_gen_toks": "many"}}, written)
    write_task(folder / "tasks", "mute", ANSWER | {"generation_kwargs": {"max_gen_toks": 0}}, written)
    unknown = {"metric_list": [{"metric": "luck", "aggregation": "mean", "higher_is_better": True}]}
    write_task(folder / "tasks", "lucky", CHOICE | unknown, QUESTIONS)
    write_task(folder / "tasks", "torn", CHOICE | {"doc_to_target": "{{no_such_field}}"}, QUESTIONS)
    write_task(folder / "tasks", "silent", CHOICE | {"doc_to_choice": "{{[' ', question]}}"}, QUESTIONS)
    holed = [*QUESTIONS[:2], {**QUESTIONS[2], "choices": ["one name", "", "no list"]}, QUESTIONS[3]]
    write_task(folder / "tasks", "holed", CHOICE | {"num_fewshot": 0}, holed)
    write_task(folder / "tasks", "bare", CHOICE | {"num_fewshot": 0, "doc_to_text": ""}, holed)
    whole = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{choices[1]}}"}
    perplexity = {"metric_list": [{"metric": "bits_per_byte"}], "num_fewshot": 0}
    write_task(folder / "tasks", "texts", whole | perplexity, holed)
    both = {"group": "both", "task": ["words", "fixed"], "aggregate_metric_list": [{"metric": "acc"}]}
    (folder / "tasks" / "both.yaml").write_text(json.dumps(both))
    write_task(folder / "tasks", "gone", CHOICE, QUESTIONS)
    (folder / "tasks" / "gone_test.jsonl").unlink()
    return folder, alone


@pytest.fixture(scope="module")
def evaluate(workplace, fedlm_here):
    folder, _ = workplace
    # To list all that come with the library takes long.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lm_eval.tasks.manager.__file__", str(folder / "tasks" / "manager.py"))
        yield lambda tasks, *words: fedlm_here(
            "evaluate", folder / "run", f"--tasks={tasks}", f"--task-folder={folder / 'tasks'}", *words
        )


@pytest.mark.long
def test_the_numbers_are_those_of_the_model_alone(workplace, evaluate):
    folder, alone = workplace
    typed = evaluate("words,answers", "--num-fewshot=1", f"--out={folder / 'found.json'}", "--json")
    assert typed.returncode == 0, typed.stderr
    found = json.loads(typed.stdout)
    assert found == json.loads((folder / "found.json").read_text())
    right, right_by_length = [], []
    for row in QUESTIONS:
        context = shown(row["question"], SOLVED["choices"][SOLVED["label"]])
        scores = np.array([alone.log_likelihood(context, f" {choice}") for choice in row["choices"]])
        right.append(scores.argmax() == row["label"])
        lengths = [len(choice) for choice in row["choices"]]
        right_by_length.append((scores / lengths).argmax() == row["label"])
    assert {*right} == {True, False}
    words, answers = found["tasks"]["words"], found["tasks"]["answers"]
    for metric, each in zip(words["metrics"], (right, right_by_length), strict=True):
        assert metric["value"] == np.mean(each)
        assert metric["standard_error"] == pytest.approx(np.std(each, ddof=1) / 2)
    assert [metric["metric"] for metric in words["metrics"]] == ["acc", "acc_norm"]
    assert answers["metrics"][0]["metric"] == "exact_match"
    assert answers["metrics"][0]["value"] == 0.5
    for task in (words, answers):
        assert (task["version"], task["shots"], task["documents"], task["documents_in_task"]) == ("2.5", 1, 4, 4)
    assert found["privacy"] == "NOT PRIVATE"
    assert found["unknown"] == 0
    assert "requests 14/14" in typed.stderr


def test_the_table_says_what_a_reader_must_know(evaluate):
    typed = evaluate("fixed,holed", "--num-fewshot=1", "--limit=3")
    assert typed.returncode == 0, typed.stderr
    said = " ".join(typed.stdout.split())
    assert "only the first 3 documents of each task were scored" in said
    assert "fixed sets its number of shots itself, 0" in said
    assert "privacy: NOT PRIVATE" in said
    assert "acc_norm" in said
    assert "holed: no metric counts 1 of its documents, which the model cannot score; of document 2 ' ' is 0" in said


def test_what_cannot_be_scored_is_named_and_all_else_is_scored(workplace, evaluate):
    _, alone = workplace
    typed = evaluate("holed,bare,texts,silent,fixed", "--json")
    assert typed.returncode == 0, typed.stderr
    found = json.loads(typed.stdout)
    assert [one["document"] for one in found["left_out"]["silent"]] == [0, 1, 2, 3]
    for name in ("holed", "bare", "texts"):
        (left_out,) = found["left_out"][name]
        assert left_out["document"] == 2
        assert left_out["why"].startswith("the text '' has no token" if name == "texts" else "' ' is 0 tokens of")
        assert found["tasks"][name]["documents"] == 3
    assert found["left_out"].keys() == {"silent", "holed", "bare", "texts"}
    assert (found["tasks"]["silent"]["documents"], found["tasks"]["silent"]["metrics"]) == (0, [])
    assert found["tasks"]["fixed"]["documents"] == 4
    for name, before in (("holed", "{}:"), ("bare", "")):
        right = []
        for row in (QUESTIONS[0], QUESTIONS[1], QUESTIONS[3]):
            context = before.format(row["question"])
            scores = [alone.log_likelihood(context, f" {choice}") for choice in row["choices"]]
            right.append(int(np.argmax(scores)) == row["label"])
        (accuracy,) = (one for one in found["tasks"][name]["metrics"] if one["metric"] == "acc")
        assert accuracy["value"] == pytest.approx(np.mean(right))


@pytest.mark.parametrize(
    ("tasks", "words", "message"),
    [
        ("wrods", [], "there is no task 'wrods'; did you mean words"),
        (",", [], "tasks names none"),
        ("both,words", [], "tasks are both, words, but must not overlap"),
        ("running_code", [], "task 'running_code' runs programs that the model writes"),
        ("sights", [], "task 'sights' has images or sound"),
        ("beams", [], "task 'beams' sets num_beams in its generation_kwargs"),
        ("endless", [], "task 'endless': its generation_kwargs cannot be read (invalid literal for int()"),
        ("mute", [], "task 'mute': max_gen_toks is 0, but must be at least 1"),
        ("lucky", [], "task 'lucky': names the metric luck, which is none of lm-evaluation-harness"),
        ("torn", [], "task 'torn': cannot be read"),
        ("gone", [], "task 'gone': cannot be read"),
        ("silent", [], "task 'silent': no document can be scored: of document 0 '  ' is 0 tokens of this"),
        ("words", ["--num-fewshot=3"], "the tasks' questions cannot be made"),
        ("words", ["--num-fewshot=-1"], "--num-fewshot is -1"),
        ("words", ["--limit=0"], "limit is 0"),
        ("words", ["--task-folder=/nowhere"], "/nowhere: there is no such folder"),
        ("words", ["--split=heldout"], "split is about clients, and does nothing with tasks"),
        ("words", ["--out=/nowhere/found.json"], "there is no folder /nowhere"),
        ("words", ["--out=/"], "out is /, which is a folder; give a file"),
    ],
)
def test_a_mistake_is_one_clear_message_and_status_2(evaluate, tasks, words, message):
    typed = evaluate(tasks, *words)
    assert typed.returncode == 2
    assert message in typed.stderr
    assert "Traceback" not in typed.stderr


def test_a_file_that_is_no_yaml_is_named(workplace, evaluate, tmp_path):
    (tmp_path / "words.yaml").write_text("task: words\n  doc_to_text: [\n")
    typed = evaluate("words", f"--task-folder={tmp_path}")
    assert typed.returncode == 2
    assert typed.stderr.startswith(f"fedlm evaluate: {tmp_path}/words.yaml: cannot be read (mapping values are not")
    assert len(typed.stderr.splitlines()) == 1


def test_a_group_has_the_mean_of_its_tasks_also_where_it_cannot_be_kept(evaluate, tmp_path, monkeypatch):
    def refuse(path, content):
        raise DiskError(f"{path}: cannot be written")

    monkeypatch.setattr("fedlm.commands.evaluate.write_atomically", refuse)
    typed = evaluate("both", f"--out={tmp_path}/found.json", "--json")
    assert typed.returncode == 2
    assert "found.json: cannot be written" in typed.stderr
    tasks = json.loads(typed.stdout)["tasks"]
    assert tasks.keys() == {"both", "words", "fixed"}
    (metric,) = tasks["both"]["metrics"]
    assert metric["value"] == np.mean([tasks[name]["metrics"][0]["value"] for name in ("words", "fixed")])
    assert tasks["both"]["documents"] == 8


def test_options_of_tasks_need_tasks_and_tasks_the_library(workplace, fedlm_here, monkeypatch):
    from fedlm.simulations.evaluation.language_tasks import measuring

    typed = fedlm_here("evaluate", workplace[0] / "run", "--num-fewshot=1")
    assert (typed.returncode, "--num-fewshot does nothing without --tasks; leave it out" in typed.stderr) == (2, True)
    monkeypatch.setattr(measuring, "LIBRARY", "no_such_library")
    typed = fedlm_here("evaluate", workplace[0] / "run", "--tasks=piqa")
    assert (typed.returncode, "pip install 'fedlm[evaluation]'" in typed.stderr) == (2, True)
