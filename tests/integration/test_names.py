"""What is installed is named `fedlm` alone, and no file of a user's stands in its way."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Names that a user's folder may well have: those of fedlm's own folders and modules, and of what runs and checks it.
TAKEN = (
    "models",
    "clients",
    "simulations",
    "fl_core",
    "tests",
    "commands",
    "fedlm_settings",
    "benchmarks",
    "reference",
)
HOUSES = ("fedlm", "models", "fl_core", "clients", "simulations")


def page(name):
    """The Python of a page, block by block."""
    return [block.partition("```")[0] for block in (ROOT / "docs" / name).read_text().split("```python\n")[1:]]


@pytest.fixture
def crowded(tmp_path):
    """A folder with files and folders of many names, none of which may be imported, a model, and text."""
    folder = tmp_path
    for name in TAKEN:
        (folder / f"{name}.py").write_text(f"raise ImportError('{name}.py is the user\\'s own')\n")
    for name in ("benchmarks", "runs", "data"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"raise ImportError('{name}/ is the user\\'s own')\n")
    registered = (
        "from fedlm.models.registry import ModelEntry\n\nTRIGRAM = ModelEntry(trigram, TrigramConfig(embedding=8))\n"
    )
    (folder / "my_models.py").write_text(page("my-own-model.md")[0] + registered)
    lines = ({"user": f"u{n % 60}", "text": f"the {n % 7} servers read a list of {n % 5} files"} for n in range(240))
    (folder / "text.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def run_in(folder, *words, **environment):
    """Run a program in a folder, which no variable names as ours; returns what it prints."""
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    done = subprocess.run(words, cwd=folder, env=ours, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_a_folder_full_of_such_names_is_in_nobodys_way(crowded):
    installed, as_module = (Path(sys.executable).with_name("fedlm"),), (sys.executable, "-m", "fedlm")
    mine = "--model my_models:TRIGRAM --data store --length 8 --devices 1 --rounds 1 --cohort-size 2"
    for program, line in (
        (installed, "data import jsonl text.jsonl --out store --vocabulary-size 60"),
        (as_module, f"simulate {mine} --client-learning-rate 0.1 --out runs/simulated"),
    ):
        run_in(crowded, *program, *line.split(), PYTHONPATH=str(crowded))
    assert (crowded / "runs" / "simulated" / "summary.json").exists()


NO_INSTALLATION = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
sys.path = [path for path in sys.path if path not in ("", {root!r})]
try:
    import fedlm
except ModuleNotFoundError:
    pass
else:
    sys.exit("fedlm is found without its folder")
sys.path.insert(0, {root!r})
import fedlm.models.registry, fedlm.fl_core.rounds.round_loop
import fedlm.clients.device.dialling, fedlm.simulations.engine.lanes
print(*(sys.modules["fedlm." + name].__file__ for name in ("models", "fl_core", "clients", "simulations")))
"""


@pytest.mark.long
def test_a_plain_checkout_is_imported_from_its_root(tmp_path):
    printed = run_in(tmp_path, sys.executable, "-c", NO_INSTALLATION.format(root=str(ROOT)))
    files = [Path(file) for file in printed.split()]
    assert [file.parent for file in files] == [ROOT / "fedlm" / name for name in HOUSES[1:]], "found through the links"
    assert [file.resolve().parent for file in files] == [ROOT / name for name in HOUSES[1:]]


OTHERS = {"__pycache__", "fedlm_client", "javascript"}
"""Folders of packages of their own: of the first but one the wheel has the inside, as `fedlm.fedlm_client`."""


def files_of(house):
    return [path for path in (ROOT / house).rglob("*") if path.is_file() and not OTHERS & {*path.parts}]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from all that a clone has, also what no wheel should."""
    folder = tmp_path_factory.mktemp("wheel")
    everywhere = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")

    def ignored(parent, names):
        return everywhere(parent, names) | ({"build", "runs"} if Path(parent) == ROOT else set())

    shutil.copytree(ROOT, folder / "sources", symlinks=True, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, folder / "sources"], check=True, timeout=300)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.long
def test_a_wheel_has_one_name_and_every_file(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.startswith("fedlm-")}
        (about,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        licence = archive.read(about.replace("METADATA", "licenses/LICENSE")).decode()
        metadata = archive.read(about).decode()
    own = {f"fedlm/{path.relative_to(ROOT / 'fedlm')}" for path in (ROOT / "fedlm").rglob("*.py")}
    client = ROOT / "clients/fedlm_client"
    inside = [path for path in (client / "fedlm_client").rglob("*.p[yr]*") if path.suffix != ".pyc"]
    own |= {f"fedlm/{path.relative_to(client)}" for path in inside}
    own |= {"fedlm/py.typed"} | {f"fedlm/{path.relative_to(ROOT)}" for house in HOUSES[1:] for path in files_of(house)}
    assert names == own
    assert {Path(name).suffix for name in names} >= {".html", ".proto", ".pyi", ".typed"}
    assert {"License: Apache-2.0", "License-File: LICENSE"} <= {*metadata.splitlines()}
    assert "Apache License" in licence


OF_ANOTHER_FOLDER = """
import fedlm

print(fedlm.__file__)
texts = {f"user {n}": ["the cat sat", "a dog ran to the cat"] for n in range(30)}
data = fedlm.DataInMemory.from_texts(texts, vocabulary_size=40)
run = fedlm.simulate(model="cifg_tiny", data=data, rounds=1, cohort_size=3, length=6)
print(run.summary["status"])
"""


@pytest.mark.long
def test_a_wheel_works_in_an_environment_of_its_own_from_another_folder(wheel, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True, timeout=100)
    python = tmp_path / "env" / "bin" / "python"
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    # What fedlm needs comes from this environment; fedlm itself does not, as a path in a .pth file has no such files.
    (packages / "needed.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")) + "\n")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", python]
    subprocess.run([*pip, "install", "--no-deps", "--ignore-installed", wheel], check=True, timeout=100)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    printed = run_in(elsewhere, python, "-c", OF_ANOTHER_FOLDER)
    assert str(packages) in printed
    assert "finished" in printed
    assert "fedlm 0.1.0" in run_in(elsewhere, python.with_name("fedlm"), "--version")
