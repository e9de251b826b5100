"""What the documents tell people to type is typed here."""

import contextlib
import importlib.util
import io
import itertools
import json
import os
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedlm.command_line.options import read_options
from fedlm.command_line.run_endings import NO_GOOD
from fedlm.commands.compare import CompareCommand
from fedlm.models.registry import MODELS
from fedlm.simulations.comparisons.comparison import rounds_to_train
from fedlm.simulations.data.sources.registry import SOURCES
from fedlm.simulations.experiments.presets import PRESETS
from tests.conftest import texts_of_sixty_clients
from tests.support.processes import held_port, type_script

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
PRIVACY = ("privacy", "private-runs", "private-vocabulary")
ONE_DEVICE = ENVIRONMENT | {"JAX_NUM_CPU_DEVICES": "1"}
FEW_CLIENTS = "--cohort-size 6 --length 8"


def blocks(path, language="sh"):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / path).read_text(), re.MULTILINE | re.DOTALL)


def for_a_shell(block):
    """Whether only a shell understands a block."""
    return re.search(r"&$|^for ", block, re.MULTILINE) is not None


def lines_of(block):
    """The commands of a block, each with what it reads, but smaller: the preset's cohorts are too large for our little
    text, and so many rounds, seeds or models show no more than few."""
    fitting = block.replace("\\\n", " ").replace("--preset small-private", f"--preset small-private {FEW_CLIENTS}")
    found = re.findall(r"^.*<<'END'\n(?:.*\n)*?END$|^.+$", fitting, re.MULTILINE)
    return [smaller(line) for line in found if line[0] != "#"]


def smaller(line):
    trains = line.startswith(("fedlm simulate ", "fedlm compare "))
    if "--preset small-private" in line and "--rounds" not in line:
        line += " --rounds 6"
    many = r"(--rounds \d)\d(?= )|(--seeds 0) 1|(--models \S+) si_cifg_tiny"
    return re.sub(many, r"\1\2\3", line) if trains else line


def commands_of(page):
    return [line for block in blocks(page) if not for_a_shell(block) for line in lines_of(block)]


@pytest.fixture
def workplace(small_store, tmp_path_factory):
    """A folder of the page's own in which runs/stdlib is there already, with little text, so that examples end soon."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / "runs").mkdir()
    (folder / "runs" / "stdlib").symlink_to(small_store)
    return folder


@pytest.fixture
def type_line(workplace, fedlm_here, cells_here):
    """Type a command of one line, which must end well; returns its output."""

    def type_line(line):
        name, *words = shlex.split(line)
        assert name == "fedlm", f"unknown kind of command: {line}"
        typed = fedlm_here(*words, cwd=workplace)
        # The noise of that preset drowns what few clients with little text have learned.
        expected = (0, NO_GOOD) if "small-private" in words else (0,)
        assert typed.returncode in expected, f"{line}\n{typed.stderr}"
        assert typed.returncode or trained_as_typed(words, workplace), line
        return typed.stdout

    return type_line


@pytest.fixture
def type_page(workplace, type_line):
    """Type all that a page has for a terminal, in its order: what is not of fedlm alone by a shell."""

    def type_page(page):
        for block in blocks(page):
            if for_a_shell(block):
                type_script(block, workplace, ENVIRONMENT)
            else:
                for line in lines_of(block):
                    type_line(line) if line.startswith("fedlm ") else type_script(line, workplace, ENVIRONMENT)

    return type_page


def trained_as_typed(words, folder):
    """Whether a run that a command trains came to its end, with as many steps and as little epsilon as it says."""
    if words[0] not in ("simulate", "pretrain") or "--out" not in words or "--plan-devices" in words:
        return True
    given = {name: value for name, value in itertools.pairwise(words) if name.startswith("--")}
    summary = json.loads((folder / given["--out"] / "summary.json").read_text())
    steps = given.get("--rounds", given.get("--steps"))
    finished = summary["status"] == "finished" and summary["test_loss"] > 0
    kept = "--epsilon" not in given or 0 < summary["privacy_guarantee"]["epsilon"] <= float(given["--epsilon"])
    return finished and kept and steps in (None, str(summary.get("rounds", summary.get("steps"))))


def run_python(code, workplace):
    """Run lines of Python as a script of a user's, in this process; returns what it prints."""
    script, printed = workplace / "script.py", io.StringIO()
    script.write_text("\n".join(code))
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed), contextlib.chdir(workplace):
        patch.syspath_prepend(str(workplace))
        runpy.run_path(str(script), run_name="__main__")
    return printed.getvalue()


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.long
def test_my_own_model_runs_as_it_is_written(workplace, monkeypatch):
    monkeypatch.setitem(MODELS, "trigram", None)  # is taken back afterwards
    perplexity, accuracy = map(float, run_python(blocks("docs/my-own-model.md", "python"), workplace).split())
    assert 1 < perplexity < 40, "a guess among all tokens has 120"
    assert 0.2 < accuracy < 1


@pytest.mark.long
def test_my_own_algorithm_runs_as_it_is_written(workplace, type_page, type_line, monkeypatch):
    monkeypatch.delitem(sys.modules, "my_algorithms", raising=False)
    algorithm, *scripts = blocks("docs/my-own-algorithm.md", "python")
    (workplace / "my_algorithms.py").write_text(algorithm)
    monkeypatch.syspath_prepend(str(workplace))
    type_page("docs/my-own-algorithm.md")
    pulled, with_momentum = map(float, run_python(scripts, workplace).split())
    assert pulled == summary_of(workplace / "runs/pull")["test_perplexity"], "by object it is what it is by name"
    registered = "fedlm simulate --data runs/stdlib --model cifg_tiny --rounds 2 --cohort-size 5"
    type_line(f"{registered} --client-algorithm fedprox --fedprox-mu 0.05 --out runs/fedprox")
    fedprox = summary_of(workplace / "runs/fedprox")["test_perplexity"]
    assert pulled == pytest.approx(fedprox, rel=1e-4), "it is FedProx, but for rounding; SGD is 0.5 % away"
    assert with_momentum < 100
    assert abs(with_momentum - pulled) > 1e-3 * pulled


@pytest.mark.long
def test_the_data_page_works_as_it_is_written_and_names_every_form(workplace, type_page):
    page = (ROOT / "docs/data.md").read_text()
    assert not [name for name in SOURCES if f"fedlm data import {name} " not in page]
    type_page("docs/data.md")
    (workplace / "script.py").write_text("\n".join(blocks("docs/data.md", "python")))
    # In a process of its own, whose workers import it.
    type_script("python script.py > printed", workplace, ENVIRONMENT)
    assert (workplace / "printed").read_text() == "{'train': 4, 'heldout': 0, 'test': 0}\n"


def lines_in(text):
    return {" ".join(line.partition("...")[0].split()) for line in text.splitlines()} - {""}


@pytest.mark.long
def test_the_privacy_pages_work_as_they_are_written(workplace, small_store, type_line):
    shutil.copytree(small_store, workplace / "DATA")
    texts = [{"user": user, "text": text} for user, some in texts_of_sixty_clients().items() for text in some]
    (workplace / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in texts))
    shown = []
    for line in itertools.chain.from_iterable(commands_of(f"docs/{name}.md") for name in PRIVACY):
        # The standard library takes a while.
        shown.append(type_line(line.replace("data import stdlib", "data import jsonl texts.jsonl")))
        assert ("report.html" if "compare" in line else "epsilon") in shown[-1], line
    (statement,) = blocks("docs/privacy.md", "text")
    told = " ".join(shown[1].split())
    assert not [line for line in lines_in(statement) if line not in told], "what the page explains is printed"


@pytest.mark.long
def test_the_page_on_clusters_works_as_it_is_written(workplace, type_page):
    type_page("docs/clusters.md")
    assert len(list((workplace / "runs/array/cells").rglob("summary.json"))) == 2
    assert (workplace / "runs/array/report.html").exists()


@pytest.mark.long
def test_the_page_on_weights_works_as_it_is_written(workplace, type_page, type_line):
    type_page("docs/models.md")
    assert run_python(blocks("docs/models.md", "python"), workplace) == "cifg (120, 64)\n"
    type_line("fedlm model export runs/again --format safetensors --out exported_again")
    before, after = (load_file(workplace / folder / "model.safetensors") for folder in ("exported", "exported_again"))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before), "an import has the export's bits"


@pytest.mark.long
def test_the_page_on_tasks_works_as_it_is_written(workplace):
    if importlib.util.find_spec("lm_eval") is None:
        pytest.skip("lm-evaluation-harness is not installed; pip install -c constraints.txt -e '.[evaluation]'")
    offline = {"HF_HOME": str(workplace / "hugging_face"), "HF_HUB_OFFLINE": "1"}
    (script,) = blocks("docs/evaluating.md")
    type_script(script, workplace, ENVIRONMENT | offline)
    (task,) = json.loads((workplace / "scores.json").read_text())["tasks"].values()
    assert (task["documents"], task["metrics"][0]["metric"]) == (2, "acc")


@pytest.mark.thorough
def test_the_recommendation_page_works_as_it_is_written(workplace):
    for script in blocks("docs/recommendation.md"):
        # Five users say little of the items that are held out.
        statuses = (0, NO_GOOD) if script.rstrip().endswith("runs/corrected_films") else (0,)
        type_script(script, workplace, ENVIRONMENT, statuses=statuses)
    corrected = summary_of(workplace / "runs/corrected_films")
    assert corrected["rounds"] == 3
    assert corrected["privacy_guarantee"]["epsilon"] > 0
    found = json.loads((workplace / "runs/private_films/evaluation_test.json").read_text())
    assert set(found["scores"]) == {f"{name}@{k}" for name in ("hit", "ndcg", "coverage") for k in (1, 3)}
    assert "the vocabulary is public" in found["privacy"]


@pytest.mark.thorough
def test_the_page_on_memorization_works_as_it_is_written(type_line):
    assert "extract" in [type_line(line) for line in commands_of("docs/memorization.md")][-1]


@pytest.fixture(scope="module")
def free_ports():
    """The same free ports for every command of a page, as many as the page has."""
    with held_port() as one, held_port() as two, held_port() as three:
        yield one, two, three


def type_deployment(page, folder, free_ports):
    """Type the commands of servers and clients, each block by a shell."""
    for command in blocks(page):
        for port, free in zip(("8470", "8471", "8472"), free_ports, strict=True):
            command = command.replace(f":{port}", f":{free}")
        type_script(command, folder, ONE_DEVICE)


@pytest.mark.thorough
def test_the_deployment_page_works_as_it_is_written(workplace, free_ports):
    type_deployment("docs/deployment.md", workplace, free_ports)
    for run in ("deployment", "shared"):
        summary = summary_of(workplace / "runs" / run)
        assert (summary["status"], summary["rounds"]) == ("finished", 3)
        assert summary["privacy_guarantee"]["epsilon"] > 0
    for run in (
        "server/runs/first",
        "server/runs/second",
        "people/runs/of_readers",
        "people/runs/of_writers",
        "sums",
        "parts",
    ):
        summary = summary_of(workplace / "runs" / run)
        assert summary["rounds"] == 2
        assert summary["privacy_guarantee"]["epsilon"] > 0
    assert not (workplace / "runs/server/runs/third").exists()


@pytest.mark.long
def test_the_page_on_plans_works_as_it_is_written(workplace, free_ports):
    type_deployment("docs/plans.md", workplace, free_ports)
    summary = summary_of(workplace / "runs/plans")
    assert (summary["status"], summary["rounds"]) == ("finished", 2)
    rows = [json.loads(line) for line in (workplace / "runs/plans/metrics.jsonl").read_text().splitlines()]
    assert [row["clients"] for row in rows] == [2, 2], "the ordinary client and that of plans took part in every round"
    assert json.loads((workplace / "plan/manifest.json").read_text())["format"] == "fedlm-plan"


@pytest.mark.long
def test_the_deployment_on_one_machine_works(workplace, free_ports):
    page = "docs/tutorials/deployment-on-one-machine.md"
    type_deployment(page, workplace, free_ports)
    assert run_python(blocks(page, "python"), workplace) == "finished 3 NOT PRIVATE\n"


def test_the_make_commands_of_the_readme_are_those_that_ci_runs():
    ci = (ROOT / ".ci" / "run").read_text()
    targets = {shlex.split(line)[1] for line in commands_of("README.md") if line.startswith("make ")}
    assert {"compare", "test"} <= targets
    for target in targets:
        assert f"make {target}" in ci


def test_the_short_comparison_of_the_readme_has_a_ninth_of_the_rounds():
    (whole,) = re.findall(r"fedlm compare (.*) \$\(COMPARE_OPTIONS\)", (ROOT / "Makefile").read_text())
    (more,) = re.findall(r'COMPARE_OPTIONS="([^"]+)"` has a ninth', (ROOT / "README.md").read_text())
    rounds, fewer = (
        rounds_to_train(read_options(CompareCommand, words.split(), "fedlm compare", presets=PRESETS).comparison)
        for words in (whole, f"{whole} {more}")
    )
    assert round(rounds / fewer) == 9


@pytest.mark.long
def test_the_lines_of_the_readme_print_what_it_shows(workplace, compiled_for_speed):
    listed = """print(*run.summary["privacy_guarantee"]["assumptions"], sep="; ")"""
    typed = run_python([*blocks("README.md", "python"), listed], workplace)
    perplexity, statement, assumptions = typed.strip().split("\n")
    *_, shown = blocks("README.md", "text")
    assert statement.split() == shown.partition("\n")[2].split()
    assert assumptions.startswith("a client takes part in at most 1 round; ")
    assert 1 < float(perplexity.removeprefix("test perplexity ")) < 2, "a guess among all words has 8"


def without_place(line):
    return re.sub(r" --out \S+", "", line)


SIMULATIONS = "docs/simulations.md"
TUTORIALS = [f"docs/tutorials/{name}.md" for name in ("first-simulation", "first-comparison", "private-run")]
CHOOSING = "docs/choose.md"
LONGEST = (SIMULATIONS, *(f"docs/{name}.md" for name in ("generating", "scaling-laws", "pretraining", "many-devices")))


@pytest.mark.parametrize(
    "page",
    [
        *(pytest.param(page, marks=pytest.mark.long) for page in (*TUTORIALS, CHOOSING)),
        *(pytest.param(page, marks=pytest.mark.thorough) for page in LONGEST),
    ],
)
def test_the_commands_of_a_page_work(page, workplace, type_line):
    elsewhere = {without_place(line) for name in PRIVACY for line in commands_of(f"docs/{name}.md")}
    for line in commands_of(page):
        if not line.startswith(("make ", "fedlm data import")) and without_place(line) not in elsewhere:
            type_line(line)
    run_python(blocks(page, "python"), workplace)


@pytest.mark.long
def test_the_front_page_of_the_site_works(workplace):
    perplexity, privacy = run_python(blocks("docs/index.md", "python"), workplace).split(maxsplit=1)
    assert 1 < float(perplexity) < 1.6, "all users write the same two lines"
    assert privacy == "NOT PRIVATE\n"


@pytest.mark.long
def test_the_page_of_metrics_names_every_number_of_a_row(workplace, type_line):
    page = (ROOT / "docs/reference/metrics.md").read_text()
    small = "--data runs/stdlib --length 8 --evaluate-every 1 --model cifg_tiny"
    for run, line in {
        "simulated": f"fedlm simulate --preset small-private {FEW_CLIENTS} {small} --rounds 1",
        "trained": f"fedlm pretrain {small} --steps 1 --batch-size 4 --epsilon 8",
    }.items():
        type_line(f"{line} --out runs/{run}")
        row = json.loads((workplace / "runs" / run / "metrics.jsonl").read_text().splitlines()[-1])
        # Of names with dots the page has what they have in common.
        said = {name: re.sub(r"(`.*?)\..*", r"\1.", f"`{name.removeprefix('heldout_')}`") for name in row}
        assert not {name for name, words in said.items() if words not in page}


@pytest.mark.long
def test_the_script_of_several_processes_works(workplace, free_port):
    (script,) = [block for block in blocks(SIMULATIONS) if for_a_shell(block)]
    assert "12355" in script
    type_script(script.replace("12355", str(free_port)), workplace, ENVIRONMENT, seconds=500)
    summary = summary_of(workplace / "runs" / "two_processes")
    assert (summary["status"], summary["machine"]["processes"]) == ("finished", 2)
