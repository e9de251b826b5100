import csv
import re

import pytest

from fedlm.simulations.reporting.report import write_report
from fedlm.simulations.reporting.selection import model_results
from fedlm.simulations.reporting.summary import summary_sentences
from fedlm.simulations.reporting.tables import CSV_COLUMNS, results_csv
from tests.simulations.reporting.hand_made_results import make_comparison, make_result
from tests.simulations.reporting.html_page import Page

COMMAND = "fedlm compare --models cifg_tiny --out 'a <b>'"
HOSTILE = "<script>alert('$x_1$')</script>--><b>&amp;"


def both_seeds(model, **settings):
    return [make_result(model, client=rate, seed=seed, **settings) for rate in (0.5, 1.0) for seed in (0, 1)]


def pair(**settings):
    return [*both_seeds("cifg_tiny", **settings), *both_seeds("si_cifg_tiny", **settings)]


CASES = {
    "all diverged without scores": pair(status="diverged", loss=None),
    "all failed at once": pair(status="failed", curve=[]),
    "numbers that are none": pair(
        perplexity=float("nan"), test_accuracy=float("inf"), training_seconds=float("nan"), curve=[None, 3.0]
    ),
    "more models than colours": [
        make_result(name, loss=4 + number / 10)
        for number, name in enumerate(
            ["cifg_tiny", "cifg_1m", "cifg_6m", "cifg_9m", "transformer_tiny", "transformer_1m", "transformer_21m"]
        )
    ],
    "hostile names": both_seeds(HOSTILE, error="<i>") + both_seeds("$\\frac{$", status="failed", error="<i>no</i>"),
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_report_renders_without_missing_numbers_or_outside_requests(case, tmp_path):
    out, results = tmp_path, CASES[case]
    models = dict.fromkeys(result.cell.experiment.model for result in results)
    source = write_report(make_comparison(models), results, out, COMMAND).read_text(encoding="utf-8")
    page = Page(source)
    links = [value for name, value in page.attributes if name in ("src", "href", "xlink:href", "srcset", "action")]
    assert all(link.startswith("#") for link in links)
    assert not re.search(r"https?://|@import|url\((?!#)", source)
    assert not re.search(r"\bnan\b|http-equiv=.refresh", source, re.IGNORECASE)
    assert not re.search(r"\b([Ii]nf|[Ii]nfinity|None)\b", page.text)
    identifiers = [value for name, value in page.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    assert page.tags.count("svg") == 4
    assert "NOT PRIVATE" in page.text
    assert COMMAND in page.text
    plots = sorted(path.name for path in (out / "plots").iterdir())
    assert plots == ["accuracy.png", "learning_rates.png", "perplexity.png", "upload.png"]
    assert all((out / "plots" / name).read_bytes().startswith(b"\x89PNG") for name in plots)
    with (out / "results.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(results)
    assert {"script", "b", "i"}.isdisjoint(page.tags)
    if case == "hostile names":
        assert HOSTILE in page.text
        assert "<i>no</i>" in page.text


def test_csv_has_a_row_a_cell_with_scores_selection_and_reason():
    results = [
        make_result(seed=0, loss=4.0, perplexity=50.0),
        make_result(seed=1, loss=4.2, perplexity=float("nan")),
        make_result(client=1.0, seed=0, loss=9.0, status="diverged"),
        make_result(client=1.0, seed=1, status="failed", error="out of memory, twice"),
    ]
    rows = list(csv.DictReader(results_csv(results, model_results(results)).splitlines()))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert [row["status"] for row in rows] == ["finished", "finished", "diverged", "failed"]
    assert [row["selected"] for row in rows] == ["yes", "yes", "no", "no"]
    assert [row["client_learning_rate"] for row in rows] == ["0.5", "0.5", "1.0", "1.0"]
    assert (rows[0]["heldout_perplexity"], rows[0]["test_perplexity"], rows[0]["test_loss"]) == ("50.0", "50.0", "4.0")
    assert rows[1]["heldout_perplexity"] == ""
    assert rows[0]["reason"] == ""
    assert rows[2]["reason"] == "the held-out loss is not a finite number (after 4 rounds)"
    assert rows[3]["reason"] == "out of memory, twice"
    assert (rows[3]["rounds"], rows[3]["parameters"], rows[0]["bytes_up"]) == ("4", "", "1000000")


def summary(results, **changes):
    models = model_results(results)
    comparison = make_comparison([entry.model for entry in models], **changes)
    return " ".join(summary_sentences(comparison, results, models)).replace("\N{NO-BREAK SPACE}", " ")


def seeds(model, perplexities, **settings):
    return [
        make_result(model, seed=seed, loss=4.0, perplexity=perplexity, **settings)
        for seed, perplexity in enumerate(perplexities)
    ]


def test_summary_admits_a_selection_that_lost_seeds():
    results = [make_result(seed=0), make_result(seed=1, status="diverged"), make_result(seed=2, status="failed")]
    text = summary(results)
    assert "No combination of learning rates of cifg_tiny finished with every seed" in text
    assert "(1 of 3 seeds diverged, 1 failed)" in text
    assert "means over the 1 seed that finished" in text


def test_summary_warns_of_the_edge_of_the_grid():
    results = [make_result(client=rate, loss=loss) for rate, loss in ((0.1, 5.0), (0.5, 4.0), (1.0, 4.5))]
    inside = summary(results, client_learning_rates=(0.1, 0.5, 1.0))
    assert "edge of the grid" not in inside
    outside = summary(results[:2], client_learning_rates=(0.1, 0.5))
    assert "for cifg_tiny lie at the edge of the grid" in outside
