"""What is installed without extras runs without their libraries, and what needs one says which."""

import configparser
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARIES = {
    "deploy": ("alembic", "cryptography", "h11", "jwt", "sqlalchemy"),
    "data": ("lxml", "py7zr"),
    "pretrain": ("grain",),
    "evaluation": ("lm_eval", "rapidfuzz"),
    "litert": ("ai_edge_litert",),
    "tracing": ("opentelemetry",),
}
WITHOUT = """
import sys
sys.modules.update(dict.fromkeys({libraries}))
"""
TRAINING = """
import fedlm

known = fedlm.Tokenizer.train(dict.fromkeys("to be or not".split(), 1))
texts = {str(n): ["to be or not to be"] * 3 for n in range(40)}
data = fedlm.DataInMemory.from_texts(texts, vocabulary=known, vocabulary_origin="public")
few = dict(rounds=1, cohort_size=3, client_batch_size=2, client_max_batches=1, length=8)
print(fedlm.simulate(model="cifg_tiny", data=data, **few).privacy)
"""
COMMANDS = """
import contextlib, io, json
from fedlm.commands.cli import main

for line in {lines}:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            status = main(line.split())
        except SystemExit as end:
            status = end.code
    print("ended", json.dumps([status, said.getvalue()]))
"""


def run_without(program, folder=None):
    libraries = [library for several in LIBRARIES.values() for library in several]
    code = WITHOUT.format(libraries=libraries) + program
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def said_without(*lines, folder=None):
    """What each of some lines, given one after the other, ends with, and says of errors."""
    printed = run_without(COMMANDS.format(lines=lines), folder)
    return [json.loads(line.removeprefix("ended ")) for line in printed.splitlines() if line.startswith("ended ")]


@pytest.mark.long
def test_training_in_memory_needs_no_extra():
    assert "NOT PRIVATE" in run_without(TRAINING)


@pytest.mark.long
def test_commands_of_simulations_need_no_extra():
    account = "account tree --rounds=9 --max-participations=1 --noise-multiplier=7 --delta=1e-6"
    *helped, (status, said) = said_without(
        "simulate --help", "compare --help", "data import --help", account, "simulate --modle x"
    )
    assert [one for one, _ in helped] == [0] * 4
    assert status == 2
    assert "--model" in said


@pytest.mark.long
def test_what_needs_an_extra_names_it_in_one_line(tmp_path):
    (tmp_path / "SITE.7z").write_bytes(bytes(100))
    lines = {
        "keys create --out KEYS": "deploy",
        "status SERVER": "deploy",
        "client --server localhost:1 --data TEXT.jsonl --insecure": "deploy",
        "fleet --server localhost:1 --data STORE --insecure": "deploy",
        "plan export RUN --out PLAN --unsigned": "deploy",
        "pretrain --data STORE --model cifg_tiny --steps 1 --batch-size 4 --privacy none --out OUT": "pretrain",
        "memorization RUN": "evaluation",
        "evaluate RUN --tasks piqa": "evaluation",
        "data import stackexchange SITE.7z --out STORE": "data",
    }
    for (line, extra), (status, said) in zip(lines.items(), said_without(*lines, folder=tmp_path), strict=True):
        of_fedlm = [one for one in said.splitlines() if one.startswith("fedlm ")]
        assert (status, len(of_fedlm)) == (2, 1), (line, said)
        assert f"pip install 'fedlm[{extra}]'" in of_fedlm[0]


def test_libraries_of_extras_are_no_requirements_of_all():
    read = configparser.ConfigParser()
    read.read(ROOT / "setup.cfg")
    required = {
        line.partition(">")[0].lower().replace("-", "_") for line in read["options"]["install_requires"].split()
    }
    assert not required & {library for several in LIBRARIES.values() for library in several}
    for extra, libraries in LIBRARIES.items():
        named = read["options.extras_require"][extra].lower().replace("-", "_")
        assert all(library in named for library in libraries)
