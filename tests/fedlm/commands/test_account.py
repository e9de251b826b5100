"""`fedlm account` as a user types it."""

import json
import math

import pytest

from fedlm.commands.cli import main
from fedlm.fl_core.privacy.accounting.monte_carlo import balls_in_bins
from fedlm.fl_core.privacy.mechanisms import blt
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.participation.realised import RealisedParticipation
from fedlm.fl_core.privacy.promise import guarantee
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger, Release

FIELDS = {"epsilon", "delta", "rho", "sensitivity", "unit", "adjacency", "assumptions", "noise_multiplier", "rounds"}
BLT = (0.9, 0.4, 0.2, 0.15)
DPSGD = ["dpsgd", "--examples", "2000", "--batch-size", "50", "--steps", "4", "--delta", "1e-5"]
NOISE = ["--noise-multiplier", "2", "--delta", "1e-6"]
BOUNDED = ["--rounds", "8", "--max-participations", "2"]
DISTRIBUTED = ("skellam", "discrete-gaussian")
FEDERATED = {name.replace("_", "-"): BOUNDED for name in MECHANISMS} | {
    "tree-honaker": [*BOUNDED, "--restart-every", "4", "--complete"],
    "banded": [*BOUNDED, "--min-separation", "4", "--bands", "3"],
    **{name: [*BOUNDED, "--cohort-size", "50", "--coordinates", "5000"] for name in DISTRIBUTED},
}


# Optimizing a dense matrix takes a while.
EVERY_KIND = [pytest.param(one, marks=pytest.mark.long) if one == "dense" else one for one in FEDERATED]


@pytest.fixture(autouse=True)
def quick_blt(monkeypatch):
    """Optimizing the matrix takes half a minute, and is tested elsewhere."""
    monkeypatch.setattr(blt.Blt, "coefficients", lambda *_: BLT)


def state(capsys, *words):
    assert main(["account", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_statement_is_whole_and_its_profile_passes_through_its_epsilon(kind, capsys):
    statement = state(capsys, kind, *FEDERATED[kind], *NOISE)
    assert statement.keys() >= FIELDS
    gaussian_rho = pytest.approx(statement["sensitivity"] ** 2 / (2 * 2**2))
    assert statement["rho"] == (None if kind in DISTRIBUTED else gaussian_rho)
    assert statement["unit"].startswith("client")
    assert statement["adjacency"].startswith("zero-out")
    assert "at most 2 rounds" in statement["assumptions"][0]
    profile = statement["privacy_profile"]
    (delta,) = [point["delta"] for point in profile if point["epsilon"] == statement["epsilon"]]
    assert delta == pytest.approx(1e-6, rel=0.05)
    deltas = [point["delta"] for point in profile]
    assert deltas == sorted(deltas, reverse=True)


def test_what_is_printed_is_no_less_than_what_json_says(capsys):
    words = ["gaussian", *BOUNDED, "--noise-multiplier", "2.345", "--delta", "1.2345678e-6"]
    exact = state(capsys, *words)
    assert main(["account", *words]) == 0
    text = capsys.readouterr().out
    assert all(part in text for part in ("mechanism  gaussian", "adjacency  zero-out", "secret"))
    lines = [line.rsplit(maxsplit=1) for line in text.splitlines() if line]
    shown = {" ".join(line[:-1]).strip(): line[-1] for line in lines}
    for name in ("epsilon", "delta", "rho", "sensitivity"):
        assert 0 <= float(shown[name]) - exact[name] <= 1e-5 * exact[name]
    assert -1e-5 * exact["epsilon"] <= float(shown["epsilon lower"]) - exact["epsilon_lower"] <= 0


def test_sampling_amplifies_and_leaves_no_rho(capsys):
    amplified = state(capsys, "gaussian", "--rounds", "20", "--sampling-probability", "0.05", *NOISE)
    assert (amplified["rho"], amplified["sensitivity"]) == (None, None)
    assert amplified["adjacency"].startswith("add-or-remove")
    assert 0 < amplified["epsilon"] < state(capsys, "gaussian", "--rounds", "20", *NOISE)["epsilon"] / 3


@pytest.mark.long
def test_central_training_with_banded_noise(capsys):
    words = [*DPSGD, "--noise-multiplier", "1"]
    fresh, banded = state(capsys, *words), state(capsys, *words, "--mechanism", "banded", "--bands", "2")
    assert banded.keys() == fresh.keys()
    assert (fresh["bands"], banded["bands"], banded["mechanism"]) == (None, 2, "banded")
    assert banded["epsilon_lower"] <= banded["epsilon"]
    # Twice as likely in half as many steps.
    assert banded["epsilon"] > fresh["epsilon"]
    assert banded["plan"]["participation"]["cycle"] == 2
    for wrong, message in ((["--bands", "2"], "does nothing"), (["--mechanism", "banded"], "only be chosen for an")):
        assert main(["account", *words, *wrong]) == 2
        assert message in capsys.readouterr().err


def test_central_training_with_both_ways_of_sampling(capsys):
    whole = state(capsys, *DPSGD, "--noise-multiplier", "1")
    truncated = state(capsys, *DPSGD, "--noise-multiplier", "1", "--sampling", "truncated-poisson")
    assert whole.keys() >= FIELDS
    assert (whole["rho"], whole["sensitivity"], whole["truncated_batch_size"]) == (None, None, None)
    assert whole["unit"].startswith("example")
    assert truncated["truncated_batch_size"] == 93
    assert "93" in truncated["assumptions"][0]
    assert whole["epsilon"] <= truncated["epsilon"] < 2 * whole["epsilon"]
    for statement in (whole, truncated):
        assert 0.99 * statement["epsilon"] <= statement["epsilon_lower"] <= statement["epsilon"]


@pytest.mark.long
def test_central_training_with_a_min_separation(capsys):
    words = ["dpsgd", "--examples", "1000", "--batch-size", "50", "--steps", "40", "--delta", "1e-5"]
    words += ["--mechanism", "banded", "--bands", "10", "--noise-multiplier", "1"]
    cyclic, found = (state(capsys, *words, "--sampling", sampling) for sampling in ("poisson", "min-separation"))
    assert found["plan"]["participation"]["min_separation"] == 10
    assert found["epsilon_lower"] < found["epsilon"] < cyclic["epsilon"]
    assert "unless it took part in one of the 9 steps before" in found["assumptions"][0]


@pytest.mark.long
def test_central_training_with_bins(capsys, monkeypatch):
    monkeypatch.setattr(balls_in_bins, "_MOST_DRAWS", 10_000)
    words = ["dpsgd", "--examples", "1000", "--batch-size", "50", "--steps", "20", "--delta", "1e-5"]
    words += ["--sampling", "balls-in-bins"]
    found = state(capsys, *words, "--epsilon", "2")
    assert found["plan"]["participation"] == {"kind": "balls_in_bins", "bins": 20}
    assert found["epsilon_lower"] < found["epsilon"] <= 2
    assert found["epsilon"] > 1.99
    assert (found["rho"], found["epsilon_by_rdp"]) == (None, None)
    assert "one of 20 bins" in found["assumptions"][0]
    assert "Monte Carlo" in found["assumptions"][1]
    assert state(capsys, *words, "--noise-multiplier", str(found["noise_multiplier"])) == found


CALIBRATED = ("gaussian", "tree-honaker", "banded")
TO_EPSILON = (*CALIBRATED, *DISTRIBUTED)


@pytest.mark.parametrize(
    "words",
    [[kind, *FEDERATED[kind], "--delta", "1e-6"] for kind in TO_EPSILON]
    + [["gaussian", "--rounds", "4", "--sampling-probability", "0.05", "--delta", "1e-6"], DPSGD],
    ids=lambda words: f"{words[0]} {words[3]}",
)
def test_calibrated_noise_keeps_its_epsilon_and_is_not_wasted(words, capsys):
    noise = state(capsys, *words, "--epsilon", "2")["noise_multiplier"]
    assert state(capsys, *words, "--noise-multiplier", repr(noise))["epsilon"] <= 2
    assert state(capsys, *words, "--noise-multiplier", repr(0.99 * noise))["epsilon"] > 2


@pytest.mark.parametrize("kind", CALIBRATED)
def test_calibrated_noise_keeps_its_rho(kind, capsys):
    statement = state(capsys, kind, *FEDERATED[kind], "--delta", "1e-6", "--rho", "0.5")
    assert statement["rho"] <= 0.5
    assert statement["rho"] == pytest.approx(0.5, rel=1e-5)


@pytest.mark.long
def test_the_worst_case_of_a_long_tree_is_found(capsys):
    rounds, leaves, levels = 3000, 10, 12
    statement = state(capsys, "tree", "--rounds", str(rounds), "--max-participations", str(leaves), *NOISE)
    # Leaves side by side are in one node of each of the upper levels, and at worst in ever fewer below.
    assert (levels - 1) * leaves < statement["sensitivity"] ** 2 < levels * leaves**2


@pytest.fixture
def run(tmp_path):
    """A folder of a run that has released 6 of 8 rounds."""
    folder = tmp_path / "run"
    (folder / "privacy").mkdir(parents=True)
    ledger = PrivacyLedger(folder / "privacy" / "ledger.jsonl")
    plan = PrivacyPlan("tree", 8, 2.0, BoundedParticipation(2, 1))
    about = {"experiment": {"noise_seed": "entropy", "update_clip_norm": 0.5}}
    ledger.begin(plan, 1e-6, "0" * 64, about)
    ledger.intend(Release(6, "digest"))
    ledger.confirm()
    return folder


def test_a_ledger_says_what_was_spent(run, capsys):
    spent = state(capsys, "ledger", str(run))
    assert (
        spent
        == state(capsys, "ledger", str(run / "privacy"))
        == state(capsys, "ledger", str(run / "privacy/ledger.jsonl"))
    )
    assert (spent["rounds"], spent["planned_rounds"], spent["interrupted_generations"]) == (6, 8, 0)
    assert (spent["delta"], spent["clip_norm"]) == (1e-6, 0.5)
    planned = state(capsys, "tree", "--rounds", "6", "--max-participations", "2", *NOISE)
    assert spent["epsilon"] == planned["epsilon"]
    assert state(capsys, "ledger", str(run), "--delta", "1e-3")["epsilon"] < spent["epsilon"]
    assert main(["account", "ledger", str(run)]) == 0
    text = capsys.readouterr().out
    assert "planned rounds  8" in text
    assert "clip norm  0.5" in text


def test_beside_the_ledger_of_a_run_that_is_over_stands_how_often_clients_took_part(run, capsys):
    assert "participation" not in state(capsys, "ledger", str(run))
    participation = RealisedParticipation.of([[0, 3], [1]]).beside(BoundedParticipation(2, 1), 8)
    (run / "summary.json").write_text(json.dumps({"status": "finished", "participation": participation}))
    for given in (run, run / "privacy"):
        assert state(capsys, "ledger", str(given))["participation"] == participation
    assert main(["account", "ledger", str(run)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "at most 2 rounds (the plan allows 2), in rounds whose numbers differ by at least 3 (the plan asks for 1)"
        in text
    )
    assert "; counted without noise" in text


def test_a_ledger_of_repeatable_noise_promises_nothing(tmp_path, capsys):
    ledger = PrivacyLedger(tmp_path / "ledger.jsonl")
    about = {"experiment": {"noise_seed": "experiment", "update_clip_norm": 1.0}}
    ledger.begin(PrivacyPlan("gaussian", 8, 2.0, BoundedParticipation(2, 1)), 1e-6, "0" * 64, about)
    statement = state(capsys, "ledger", str(tmp_path))
    assert (statement["epsilon"], statement["rho"]) == (None, None)
    assert main(["account", "ledger", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "NOT PRIVATE" in text
    assert "infinite" not in text


PLOT = ["plot", "--rounds", "8", "--epsilon", "1", "--delta", "1e-6", "--out"]


def test_a_run_without_a_ledger_is_said_not_to_be_private(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text("")
    assert main(["account", "ledger", str(tmp_path)]) == 2
    assert f"{tmp_path}: NOT PRIVATE: this run has no ledger" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tree", *BOUNDED, "--delta", "1e-6"], "exactly one of --noise-multiplier, --epsilon and --rho, not none"),
        (["tree", *BOUNDED, *NOISE, "--epsilon", "1"], "not --noise-multiplier and --epsilon"),
        ([*DPSGD, "--rho", "1"], "rho does not express"),
        ([*DPSGD, "--noise-multiplier", "1", "--truncated-batch-size", "60"], "does nothing with --sampling poisson"),
        (
            [*DPSGD, "--noise-multiplier", "1", "--truncated-batch-size", "60", "--sampling", "balls-in-bins"],
            "does nothing with --sampling balls-in-bins",
        ),
        ([*DPSGD[:-1], "0", "--epsilon", "2"], "delta is 0.0"),
        ([*DPSGD, "--epsilon", "0"], "--epsilon is 0.0, but must be positive"),
        (["tree", *BOUNDED, "--epsilon", "1e300", "--delta", "1e-6"], "--epsilon is 1e+300, but must be at most 1e+30"),
        (["tree", *BOUNDED, "--noise-multiplier", "1e300", "--delta", "1e-6"], "--noise-multiplier is 1e+300"),
        ([*DPSGD, "--epsilon", "2", "--batch-size", "3000"], "--batch-size is 3000"),
        (["gaussian", *BOUNDED, "--epsilon", "2", "--delta", "1"], "delta is 1.0"),
        (["gaussian", *BOUNDED, *NOISE, "--sampling-probability", "0.1"], "one or the other"),
        (
            ["gaussian", "--rounds", "8", "--rho", "1", "--delta", "1e-6", "--sampling-probability", "0.1"],
            "give --epsilon",
        ),
        (["tree", *BOUNDED, *NOISE, "--complete"], "--complete-trees does nothing without --restart-every"),
        (["banded", *BOUNDED, *NOISE, "--bands", "2"], "bands is 2"),
        ([*PLOT, "picture.jpg"], "must end in one of .png, .svg, .pdf"),
        (["ledger", "/nowhere"], "neither a ledger nor the folder of a private run"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_a_mistake_is_one_line_and_status_2(words, message, capsys):
    assert main(["account", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.startswith("fedlm account: ")
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content.replace(b'"rounds": 6', b'"rounds": 5', 1), "does not match its checksum"),
        (lambda content: content.split(b"\n", 1)[1], "does not follow"),
        (lambda content: b"\xff\xfe\n", "not a record of ours"),
        (lambda content: b"[1, 2]\n", "not a record of ours"),
        (lambda content: b"", "no ledger, or no whole record"),
    ],
)
def test_a_damaged_ledger_is_named(run, damage, message, capsys):
    path = run / "privacy" / "ledger.jsonl"
    path.write_bytes(damage(path.read_bytes()))
    assert main(["account", "ledger", str(run)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert str(path) in said
    assert said.count("\n") == 1


@pytest.mark.long
def test_a_picture_is_made(tmp_path, capsys):
    out = tmp_path / "deep" / "picture.svg"
    words = ["--max-participations", "2", "--min-separation", "4", "--rounds", "20"]
    assert main(["account", *PLOT, str(out), *words]) == 0
    assert str(out) in capsys.readouterr().out
    assert b"</svg>" in out.read_bytes()
    assert [file.name for file in out.parent.iterdir()] == [out.name], "nothing is left beside it"


def test_an_infinite_epsilon_is_said(monkeypatch, capsys):
    monkeypatch.setattr(guarantee, "gaussian_epsilon", lambda *_: math.inf)
    assert main(["account", "gaussian", *BOUNDED, *NOISE]) == 0
    assert "epsilon  infinite" in capsys.readouterr().out


SIMULATION = [
    *("--model", "cifg_tiny", "--rounds", "4", "--cohort-size", "5", "--cohort-sampler", "min_separation"),
    *("--min-separation", "2", "--max-participations", "2", "--privacy", "tree", "--update-clip-norm", "0.5"),
    *("--noise-multiplier", "2", "--delta", "1e-5", "--length", "8"),
]


def test_a_simulation_is_accounted_without_running_it(capsys, small_store):
    found = state(capsys, "simulate", *SIMULATION, "--data", str(small_store))
    same = ["--rounds", "4", "--max-participations", "2", "--min-separation", "2", "--noise-multiplier", "2"]
    expected = state(capsys, "tree", *same, "--delta", "1e-5")
    assert {name: found[name] for name in FIELDS} == {name: expected[name] for name in FIELDS}
    assert found["clip_norm"] == 0.5
    repeatable = state(capsys, "simulate", *SIMULATION, "--data", str(small_store), "--noise-seed", "experiment")
    assert repeatable["epsilon"] is None
    assert main(["account", "simulate", "--model", "cifg_tiny", "--data", str(small_store)]) == 2
    assert "such a run promises nothing" in capsys.readouterr().err
