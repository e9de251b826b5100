"""`fedlm compare` of mechanisms and epsilons as a user runs it, on a small store."""

import csv
import json
import shlex

import pytest

OPTIONS = shlex.split(
    "--models si_cifg_tiny --rounds 2 --cohort-size 4 --length 8 --evaluate-every 1 --seeds 0 "
    "--client-learning-rates 0.5 --server-optimizer fedavg --server-learning-rates 1.0 --heldout-examples 50 "
    "--cohort-sampler min_separation --min-separation 2 --update-clip-norm 1"
)


def options(store, out, *more):
    return ["--data", str(store), "--out", str(out), *OPTIONS, *more]


@pytest.fixture(scope="module")
def compared(small_store, tmp_path_factory, fedlm_here, cells_here):
    out = tmp_path_factory.mktemp("compare") / "out"
    words = options(small_store, out, "--mechanisms", "tree", "banded", "--epsilons", "1000", "inf")
    result = fedlm_here("compare", *words)
    assert result.returncode == 0, result.stderr
    return out


def summaries(out):
    return {path.parts[-4]: json.loads(path.read_text()) for path in out.glob("cells/si_cifg_tiny/*/*/*/summary.json")}


@pytest.mark.long
def test_every_mechanism_keeps_its_epsilon_and_the_report_compares_at_equal_privacy(compared):
    by_folder = summaries(compared)
    assert set(by_folder) == {"tree_epsilon-1000", "banded_epsilon-1000", "no_noise"}
    for mechanism in ("tree", "banded"):
        guarantee = by_folder[f"{mechanism}_epsilon-1000"]["privacy_guarantee"]
        assert guarantee["mechanism"] == mechanism
        assert 995 < guarantee["epsilon"] <= 1000
    assert by_folder["no_noise"]["privacy"] == "NOT PRIVATE"
    assert by_folder["no_noise"]["experiment"]["weighting"] == "uniform"
    page = (compared / "report.html").read_text()
    assert "epsilon 1000" in page
    assert "runs without noise: NOT PRIVATE" in page
    assert (compared / "plots" / "privacy_utility.png").exists()
    with (compared / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["mechanism"] for row in rows] == ["tree", "banded", "none"]
