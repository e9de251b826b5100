"""What is installed without extras runs without their libraries, and what needs one says which."""

import configparser
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARIES = {
    "deploy": ("alembic", "cryptography", "h11", "sqlalchemy"),
    "data": ("h5py", "lxml", "py7zr"),
    "pretrain": ("grain",),
    "evaluation": ("lm_eval", "rapidfuzz"),
    "litert": ("ai_edge_litert",),
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
from fedlm.commands.cli import main

sys.exit(main({words}))
"""


def run_without(program, **filled):
    libraries = [library for several in LIBRARIES.values() for library in several]
    code = WITHOUT.format(libraries=libraries) + (program.format(**filled) if filled else program)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)


@pytest.mark.long
def test_training_in_memory_needs_no_extra():
    done = run_without(TRAINING)
    assert done.returncode == 0, done.stderr
    assert "NOT PRIVATE" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "--help"],
        ["compare", "--help"],
        ["data", "import", "--help"],
        ["account", "tree", "--rounds=9", "--max-participations=1", "--noise-multiplier=7", "--delta=1e-6"],
    ],
    ids=lambda words: words[0],
)
def test_commands_of_simulations_need_no_extra(words):
    done = run_without(COMMANDS, words=words)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("deploy", ["keys", "create", "--out", "KEYS"]),
        ("deploy", ["status", "SERVER"]),
        ("deploy", ["client", "--server", "localhost:1", "--data", "TEXT.jsonl", "--insecure"]),
        ("deploy", ["fleet", "--server", "localhost:1", "--data", "STORE", "--insecure"]),
        ("deploy", ["plan", "export", "RUN", "--out", "PLAN", "--unsigned"]),
        (
            "pretrain",
            [
                "pretrain",
                "--data",
                "STORE",
                "--model",
                "cifg_tiny",
                "--steps",
                "1",
                "--batch-size",
                "4",
                "--privacy",
                "none",
                "--out",
                "OUT",
            ],
        ),
        ("evaluation", ["memorization", "RUN"]),
        ("evaluation", ["evaluate", "RUN", "--tasks", "piqa"]),
        ("data", ["data", "import", "stackoverflow-tff", "FILE.h5", "--out", "STORE"]),
        ("data", ["data", "import", "stackexchange", "SITE.7z", "--out", "STORE"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_what_needs_an_extra_names_it_in_one_line(tmp_path, extra, words):
    (tmp_path / "FILE.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    (tmp_path / "SITE.7z").write_bytes(bytes(100))
    places = [str(tmp_path / word) if word.isupper() or "." in word else word for word in words]
    done = run_without(COMMANDS, words=places)
    lines = [line for line in done.stderr.splitlines() if line.startswith("fedlm ")]
    assert (done.returncode, len(lines)) == (2, 1), done.stderr
    assert f"pip install 'fedlm[{extra}]'" in lines[0]


def test_a_wrong_option_is_still_explained():
    done = run_without(COMMANDS, words=["simulate", "--modle", "x"])
    assert done.returncode == 2
    assert "--model" in done.stderr


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
