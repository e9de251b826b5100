"""What the documents tell people to type is typed here."""

import contextlib
import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedlm.commands.run_endings import NO_GOOD
from fedlm.simulations.data.sources.registry import SOURCES
from tests.support.processes import type_script

ROOT = Path(__file__).parents[2]


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / path).read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def workplace(small_store, tmp_path_factory):
    """A folder of the page's own in which runs/stdlib is there already, with little text, so that examples end soon."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / "runs").mkdir()
    (folder / "runs" / "stdlib").symlink_to(small_store)
    return folder


@pytest.fixture
def type_line(workplace, fedlm_here):
    """Type a command of one line; those that start processes of their own run in one."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def type_line(line):
        name, *words = shlex.split(line)
        if words[0] != "compare" and words[:2] != ["laws", "run"]:
            assert name == "fedlm"
            typed = fedlm_here(*words, cwd=workplace)
            if typed.returncode == NO_GOOD and "small-private" in words:
                typed.returncode = 0  # The noise of that preset drowns what few clients with little text have learned.
                return typed
            assert typed.returncode != 0 or trained_as_typed(words, workplace)
            return typed
        return subprocess.run(
            [name, *words], cwd=workplace, env=environment, capture_output=True, text=True, timeout=600
        )

    return type_line


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


@pytest.mark.long
def test_my_own_model_runs_as_it_is_written(workplace):
    script = workplace / "script.py"
    script.write_text("\n".join(blocks("docs/my-own-model.md", "python")))
    result = subprocess.run([sys.executable, script], cwd=workplace, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    perplexity, accuracy = map(float, result.stdout.split())
    assert 1 < perplexity < 40, "a guess among all tokens has 120"
    assert 0.2 < accuracy < 1


@pytest.mark.long
def test_my_own_algorithm_runs_as_it_is_written(workplace, type_line):
    algorithm, *scripts = blocks("docs/my-own-algorithm.md", "python")
    (workplace / "my_algorithms.py").write_text(algorithm)
    for line in blocks("docs/my-own-algorithm.md", "sh"):
        typed = type_line(line)
        assert typed.returncode == 0, typed.stderr
    assert json.loads((workplace / "runs/pull/summary.json").read_text())["rounds"] == 2
    script = workplace / "script.py"
    script.write_text("\n".join(scripts))
    result = subprocess.run([sys.executable, script], cwd=workplace, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    pulled, with_momentum = map(float, result.stdout.split())
    named = json.loads((workplace / "runs/pull/summary.json").read_text())["test_perplexity"]
    assert pulled == named, "by object it is what it is by name"
    registered = "fedlm simulate --data runs/stdlib --model cifg_tiny --rounds 2 --cohort-size 5"
    typed = type_line(f"{registered} --client-algorithm fedprox --fedprox-mu 0.05 --out runs/fedprox")
    assert typed.returncode == 0, typed.stderr
    fedprox = json.loads((workplace / "runs/fedprox/summary.json").read_text())["test_perplexity"]
    assert pulled == pytest.approx(fedprox, rel=1e-4), "it is FedProx, but for rounding; SGD is 0.5 % away"
    assert with_momentum < 100
    assert abs(with_momentum - pulled) > 1e-3 * pulled


@pytest.mark.long
def test_the_data_page_works_as_it_is_written(workplace):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    commands = blocks("docs/data.md", "sh")
    assert len(commands) >= 8
    for command in commands:
        type_script(command, workplace, environment)
    script = workplace / "source.py"
    script.write_text("\n".join(blocks("docs/data.md", "python")))
    result = subprocess.run([sys.executable, script], cwd=workplace, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "{'train': 4, 'heldout': 0, 'test': 0}\n"


@pytest.mark.long
def test_the_privacy_page_works_as_it_is_written(workplace, type_line):
    commands = [line for block in blocks("docs/privacy.md", "sh") for line in fitting(block).splitlines() if line]
    assert len(commands) >= 5
    shutil.copytree(workplace / "runs" / "stdlib", workplace / "DATA")
    for line in commands:
        result = type_line(line)
        assert result.returncode == 0, f"{line}\n{result.stderr}"
        assert ("report.html" if "compare" in line else "epsilon") in result.stdout


@pytest.mark.long
def test_the_page_on_clusters_works_as_it_is_written(workplace):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for script in blocks("docs/clusters.md", "sh"):
        type_script(script, workplace, environment)
    assert (workplace / "runs/array/report.html").exists()


@pytest.mark.long
def test_the_page_on_weights_works_as_it_is_written(workplace, type_line):
    for line in [line for block in blocks("docs/models.md", "sh") for line in block.splitlines()]:
        result = type_line(line)
        assert result.returncode == 0, f"{line}\n{result.stderr}"
    (script,) = blocks("docs/models.md", "python")
    result = subprocess.run([sys.executable, "-c", script], cwd=workplace, capture_output=True, text=True, timeout=300)
    assert result.stdout == "cifg (120, 64)\n"
    (before, after) = (load_file(workplace / folder / "model.safetensors") for folder in ("exported", "program"))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    again = type_line("fedlm model export runs/again --format safetensors --out exported_again")
    assert again.returncode == 0, again.stderr
    after = load_file(workplace / "exported_again" / "model.safetensors")
    assert all(np.array_equal(before[name], after[name]) for name in before), "an import has the bits of the export"


@pytest.mark.long
def test_the_page_on_tasks_works_as_it_is_written(workplace):
    if importlib.util.find_spec("lm_eval") is None:
        pytest.skip("lm-evaluation-harness is not installed; pip install -c constraints.txt -e '.[evaluation]'")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HF_HOME": str(workplace / "hugging_face"),
        "HF_HUB_OFFLINE": "1",
    }
    (script,) = blocks("docs/evaluating.md", "sh")
    type_script(script, workplace, environment)
    (task,) = json.loads((workplace / "scores.json").read_text())["tasks"].values()
    assert (task["documents"], task["metrics"][0]["metric"]) == (2, "acc")


@pytest.mark.thorough
def test_the_recommendation_page_works_as_it_is_written(workplace):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for script in blocks("docs/recommendation.md", "sh"):
        # Five users say little of the items that are held out.
        statuses = (0, NO_GOOD) if script.rstrip().endswith("runs/corrected_films") else (0,)
        type_script(script, workplace, environment, statuses=statuses)
    corrected = json.loads((workplace / "runs/corrected_films/summary.json").read_text())
    assert corrected["rounds"] == 3
    assert corrected["privacy_guarantee"]["epsilon"] > 0
    found = json.loads((workplace / "runs/private_films/evaluation_test.json").read_text())
    assert set(found["scores"]) == {f"{name}@{k}" for name in ("hit", "ndcg", "coverage") for k in (1, 3)}
    assert "the vocabulary is public" in found["privacy"]


@pytest.mark.long
def test_the_pretraining_page_works_as_it_is_written(workplace, type_line):
    commands = [line for block in blocks("docs/pretraining.md", "sh") for line in block.splitlines()]
    for line in commands:
        result = type_line(line)
        assert result.returncode == 0, f"{line}\n{result.stderr}"
    assert "extract" in result.stdout


@pytest.mark.thorough
def test_the_deployment_page_works_as_it_is_written(workplace, free_ports):
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "JAX_NUM_CPU_DEVICES": "1",
    }
    written = ("8470", "8471", "8472")
    commands = blocks("docs/deployment.md", "sh")
    assert len(commands) >= 5
    for command in commands:
        for port, free in zip(written, free_ports(len(written)), strict=True):
            command = command.replace(f":{port}", f":{free}")
        type_script(command, workplace, environment)
    for run in ("deployment", "shared"):
        summary = json.loads((workplace / "runs" / run / "summary.json").read_text())
        assert (summary["status"], summary["rounds"]) == ("finished", 3)
        assert summary["privacy_guarantee"]["epsilon"] > 0


@pytest.mark.long
def test_the_page_on_plans_works_as_it_is_written(workplace, free_ports):
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "JAX_NUM_CPU_DEVICES": "1",
    }
    commands = blocks("docs/plans.md", "sh")
    assert len(commands) == 3
    for command in commands:
        type_script(command.replace(":8470", f":{free_ports(1)[0]}"), workplace, environment)
    summary = json.loads((workplace / "runs/plans/summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("finished", 2)
    rows = [json.loads(line) for line in (workplace / "runs/plans/metrics.jsonl").read_text().splitlines()]
    assert [row["clients"] for row in rows] == [2, 2], "the ordinary client and that of plans took part in every round"
    assert json.loads((workplace / "plan/manifest.json").read_text())["format"] == "fedlm-plan"


@pytest.fixture(scope="module")
def free_ports():
    """The same free ports for every command of a page, as many as the page has."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(3)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        found = [listener.getsockname()[1] for listener in listeners]
    return lambda count: found[:count]


def fitting(block):
    """The commands of a block, a line each; the preset's cohorts are too large for the little text there is."""
    return block.replace("\\\n", " ").replace("--preset small-private", f"--preset small-private {FEW_CLIENTS}")


FEW_CLIENTS = "--cohort-size 6 --length 8"


def test_the_data_page_names_every_form():
    page = (ROOT / "docs/data.md").read_text()
    for name in SOURCES:
        assert f"fedlm data import {name} " in page


SIMULATIONS = "docs/simulations.md"
TUTORIALS = [f"docs/tutorials/{name}.md" for name in ("first-simulation", "first-comparison", "private-run")]


def scripts(page):
    """The blocks of a page that only a shell understands."""
    return [block for block in blocks(page, "sh") if "&\n" in block]


def commands_of(page):
    return [
        line
        for block in blocks(page, "sh")
        if block not in scripts(page)
        for line in block.replace("\\\n", " ").splitlines()
        if line.strip() and not line.startswith("#")
    ]


def test_the_make_commands_of_the_readme_are_those_that_ci_runs():
    ci = (ROOT / ".ci" / "run").read_text()
    targets = {shlex.split(line)[1] for line in commands_of("README.md") if line.startswith("make ")}
    assert {"compare", "test"} <= targets
    for target in targets:
        assert f"make {target}" in ci


@pytest.mark.parametrize(
    "page",
    [
        *(pytest.param(page, marks=pytest.mark.long) for page in ("README.md", SIMULATIONS, *TUTORIALS)),
        *(pytest.param(page, marks=pytest.mark.thorough) for page in ("docs/generating.md", "docs/scaling-laws.md")),
    ],
)
def test_the_commands_of_a_page_work(page, workplace, type_line):
    commands = [line for line in commands_of(page) if not line.startswith("make ")]
    assert len(commands) >= 1
    for line in commands:
        assert line.startswith("fedlm "), f"unknown kind of command in {page}: {line}"
        if line.startswith("fedlm data import"):
            continue  # The tests of data sets import the standard library, which takes a while.
        result = type_line(fitting(line))
        assert result.returncode == 0, f"{line}\n{result.stderr}"
    run_python(page, workplace)


def run_python(page, workplace):
    """Run the Python of a page, all of it in one process; returns what it prints."""
    script = workplace / "page.py"
    script.write_text("\n".join(blocks(page, "python")))
    result = subprocess.run([sys.executable, script], cwd=workplace, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.long
def test_the_front_page_of_the_site_works(workplace):
    perplexity, privacy = run_python("docs/index.md", workplace).split(maxsplit=1)
    assert 1 < float(perplexity) < 1.6, "all users write the same two lines"
    assert privacy == "NOT PRIVATE\n"


@pytest.mark.long
def test_the_deployment_on_one_machine_works(workplace, free_ports):
    folder = workplace / "one_machine"
    folder.mkdir()
    (folder / "runs").symlink_to(workplace / "runs")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "JAX_NUM_CPU_DEVICES": "1",
    }
    page = "docs/tutorials/deployment-on-one-machine.md"
    for command in blocks(page, "sh"):
        for port, free in zip(("8470", "8471"), free_ports(2), strict=True):
            command = command.replace(f":{port}", f":{free}")
        type_script(command, folder, environment)
    assert run_python(page, folder) == "finished 3 NOT PRIVATE\n"


@pytest.mark.long
def test_the_page_of_metrics_names_every_number_of_a_row(workplace, type_line):
    page = (ROOT / "docs/reference/metrics.md").read_text()
    small = "--data runs/stdlib --length 8 --evaluate-every 1 --model cifg_tiny"
    for run, line in {
        "simulated": f"fedlm simulate --preset small-private {FEW_CLIENTS} {small} --rounds 1",
        "trained": f"fedlm pretrain {small} --steps 1 --batch-size 4 --epsilon 8",
    }.items():
        result = type_line(f"{line} --out runs/{run}")
        assert result.returncode == 0, result.stderr
        row = json.loads((workplace / "runs" / run / "metrics.jsonl").read_text().splitlines()[-1])
        missing = {name for name in row if f"`{name.removeprefix('heldout_')}`" not in page}
        assert not missing


@pytest.mark.long
def test_the_script_of_several_processes_works(workplace, free_port):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    (script,) = scripts(SIMULATIONS)
    assert "12355" in script
    type_script(script.replace("12355", str(free_port)), workplace, environment, seconds=500)
    summary = json.loads((workplace / "runs" / "two_processes" / "summary.json").read_text())
    assert (summary["status"], summary["machine"]["processes"]) == ("finished", 2)
