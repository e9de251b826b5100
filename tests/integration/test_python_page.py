"""The page on Python: our lines run, and so do those of the frameworks beside them, where these are installed."""

import os
import re
import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "benchmarks" / "simulation" / "peers" / ".venv"
ENTROPY = 1.0986


def block(framework=None):
    """The code of a framework; ours is all blocks of plain Python, one after another."""
    info = "python" if framework is None else f"python {framework}"
    page = (ROOT / "docs" / "python.md").read_text()
    return "\n\n".join(re.findall(rf"^```{info}\n(.*?)^```", page, re.MULTILINE | re.DOTALL))


def lines(code):
    """How many lines of code say something beside imports."""
    return sum(bool(line.strip()) and not line.startswith(("import", "from")) for line in code.splitlines())


def last_number(output):
    return float(output.split()[-1])


@pytest.mark.parametrize(("framework", "name"), [("fedjax", "FedJAX"), ("pfl", "pfl-research"), ("flower", "Flower")])
def test_the_page_counts_lines_as_they_are(framework, name):
    page = (ROOT / "docs" / "python.md").read_text()
    assert re.search(rf"^\| {name} [\d.]+ \| {lines(block(framework))} \|", page, re.MULTILINE)
    ours = block().partition("\n\n\nclass Watch")[0].partition("\n\nclass Watch")[0]
    assert f"| fedlm, above | {lines(ours)} |" in page


@pytest.mark.long
def test_our_lines_run(tmp_path, monkeypatch, capsys):
    script = tmp_path / "script.py"
    script.write_text(block() + "\n\nWatch().on_round(fedlm.FinishedRound(run.rows[-1], 30, run.params))\n")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    result, watched = capsys.readouterr().out.splitlines()
    loss, _, privacy = result.partition(" ")
    assert ENTROPY - 0.05 < float(loss) < ENTROPY + 0.1
    assert privacy == "NOT PRIVATE"
    assert watched.startswith("round 29 of 30: loss 1.1")


@pytest.mark.reference
def test_the_lines_of_fedjax_run(reference_python, tmp_path):
    script = tmp_path / "fedjax_lines.py"
    script.write_text(block("fedjax"))
    assert ENTROPY - 0.05 < reference_python(script) < ENTROPY + 0.1


@pytest.mark.reference
@pytest.mark.skipif(not (PEERS / "installed").exists(), reason="run `make bench-peers`")
@pytest.mark.parametrize("framework", ["pfl", "flower"])
def test_the_lines_of_other_frameworks_run(framework, tmp_path):
    script = tmp_path / f"{framework}_lines.py"
    script.write_text(block(framework))
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [PEERS / "bin" / "python", script]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | quiet, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert ENTROPY - 0.05 < last_number(done.stdout) < ENTROPY + 0.1
