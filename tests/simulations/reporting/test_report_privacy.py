"""Reports of comparisons of mechanisms and epsilons."""

import csv
import math

import pytest

from fedlm.simulations.reporting.gaps import gaps
from fedlm.simulations.reporting.plots.utility_plots import can_draw_utility
from fedlm.simulations.reporting.privacy_summary import (
    choice_warning,
    privacy_marks,
    privacy_rows,
    privacy_sentence,
    privacy_statements,
)
from fedlm.simulations.reporting.report import write_report
from fedlm.simulations.reporting.selection import model_results
from fedlm.simulations.reporting.summary import summary_sentences
from tests.simulations.reporting.hand_made_results import make_comparison, make_private_result, make_result
from tests.simulations.reporting.html_page import Page

MODELS = ("cifg_tiny", "si_cifg_tiny")
PERPLEXITIES = {
    ("cifg_tiny", "tree", 5.0): 400.0,
    ("cifg_tiny", "tree", 20.0): 300.0,
    ("cifg_tiny", "blt", 5.0): 390.0,
    ("cifg_tiny", "blt", 20.0): 310.0,
    ("cifg_tiny", "none", math.inf): 200.0,
    ("si_cifg_tiny", "tree", 5.0): 380.0,
    ("si_cifg_tiny", "tree", 20.0): 320.0,
    ("si_cifg_tiny", "blt", 5.0): 350.0,
    ("si_cifg_tiny", "blt", 20.0): 290.0,
    ("si_cifg_tiny", "none", math.inf): 190.0,
}


def rows_of(models):
    return privacy_rows(models, gaps(models))


def grid(**settings):
    return [
        make_private_result(mechanism, epsilon, model=model, seed=seed, perplexity=perplexity + 2 * seed, **settings)
        for (model, mechanism, epsilon), perplexity in PERPLEXITIES.items()
        for seed in (0, 1)
    ]


def plain(text):
    return text.replace("\N{NO-BREAK SPACE}", " ")


def sentences(results):
    models = model_results(results)
    comparison = make_comparison([entry.model for entry in models[:1]])
    return plain(" ".join(summary_sentences(comparison, results, models)))


def test_learning_rates_are_selected_for_each_privacy_by_itself():
    models = model_results(
        [
            make_private_result(epsilon=5.0, client=0.5, loss=5.0),
            make_private_result(epsilon=5.0, client=1.0, loss=6.0),
            make_private_result(epsilon=20.0, client=0.5, loss=4.0),
            make_private_result(epsilon=20.0, client=1.0, loss=3.0),
            make_private_result("blt", epsilon=20.0, client=1.0, loss=9.0),
        ]
    )
    assert [(entry.name, entry.selected.client_learning_rate) for entry in models] == [
        ("cifg_tiny (tree, epsilon 5)", 0.5),
        ("cifg_tiny (tree, epsilon 20)", 1.0),
        ("cifg_tiny (blt, epsilon 20)", 1.0),
    ]


def test_a_twin_is_one_with_the_same_privacy():
    models = model_results(
        [
            make_private_result(epsilon=5.0, model="cifg_tiny", curve=[9.0, 5.0]),
            make_private_result(epsilon=20.0, model="si_cifg_tiny", curve=[9.0, 4.0]),
            make_private_result(epsilon=5.0, model="si_cifg_tiny", curve=[9.0, 8.0]),
        ]
    )
    assert [(entry.twin, entry.twin_perplexity) for entry in models[1:]] == [(None, None), ("cifg_tiny", 5.0)]


def test_the_table_puts_mechanisms_of_one_epsilon_together_and_no_noise_last():
    rows = rows_of(model_results(grid()))
    assert [(row.level, row.mechanism) for row in rows] == [
        *[("epsilon 5", "tree"), ("epsilon 5", "blt"), ("epsilon 20", "tree"), ("epsilon 20", "blt")],
        ("no noise", "\N{EN DASH}"),
    ]
    assert [plain(score.perplexity) for score in rows[1].scores] == ["391.0 ± 1.4", "351.0 ± 1.4"]
    assert plain(rows[1].scores[0].accuracy) == "22.00 ± 0.00 %"
    assert [[score.lowest for score in row.scores] for row in rows[2:4]] == [[True, False], [False, True]]
    assert [score.outcome for score in rows[2].scores] == ["", "undecided"]


def test_the_summary_compares_at_equal_privacy_only():
    text = sentences(grid())
    assert "At epsilon 5 the lowest mean test perplexity is that of si_cifg_tiny with blt noise, 351.0 ± 1.4." in text
    assert "Without noise the lowest mean test perplexity is that of si_cifg_tiny, 191.0 ± 1.4." in text
    assert "the lowest mean test perplexity was reached by blt 3 times and tree once" in text
    assert "16 private runs were compared. No epsilon accounts for choosing the best of several runs" in text


def test_no_epsilon_is_told_where_no_run_stated_one():
    results = [make_private_result(epsilon=5.0, status="failed"), make_private_result(epsilon=20.0)]
    models = model_results(results)
    assert privacy_marks(models)[0] == "each run alone differentially private: epsilon 20"
    assert dict(privacy_statements(models))["tree, NOT PRIVATE"].startswith("NOT PRIVATE: no run came to its end")
    assert "Of 2 combinations of model and privacy, 1 had no run that finished." in sentences(results)
    plain_models = model_results([make_result()])
    assert privacy_marks(plain_models) == ["NOT PRIVATE"]
    assert privacy_statements(plain_models) == rows_of(plain_models) == []


def test_marks_and_statements_say_what_is_private_and_what_is_not():
    models = model_results(grid())
    assert privacy_marks(models) == [
        "each run alone differentially private: epsilon 5 and 20",
        "choosing among 16 private runs is not accounted",
        "runs without noise: NOT PRIVATE",
    ]
    statements = dict(privacy_statements(models))
    assert next(iter(statements)) == "tree, epsilon 5"
    assert statements["blt, epsilon 20"].startswith(
        "(20, 1e-05)-differential privacy; unit: client; adjacency: zero-out"
    )
    assert statements["no noise"] == "NOT PRIVATE"


@pytest.mark.long
def test_no_epsilon_is_shown_of_runs_whose_noise_can_be_computed_again(tmp_path):
    results = [
        make_private_result("tree", epsilon, "experiment", model=model, noise=noise)
        for model in MODELS
        for epsilon, noise in ((6.125, 7.5), (13.375, 3.5))
    ]
    for result in results:
        result.summary["noise_multiplier"] = result.summary["noise"]
    models = model_results(results)
    assert not can_draw_utility(models)
    assert privacy_marks(models) == ["NOT PRIVATE: the noise follows from the experiment's seed"]
    assert [row.level for row in rows_of(models)] == [
        "NOT PRIVATE, noise multiplier 7.5",
        "NOT PRIVATE, noise multiplier 3.5",
    ]
    page = write_report(make_comparison(MODELS), results, tmp_path, "fedlm compare").read_text()
    text = Page(page).text
    assert "NOT PRIVATE: the noise follows from the experiment's seed" in text
    for shown in ("6.125", "13.38", "13.375", "1e-05", "epsilon 6", "epsilon 13"):
        assert shown not in page.split("</style>")[1]
        assert shown not in (tmp_path / "results.csv").read_text()


def test_why_nothing_is_promised_is_what_the_statements_say():
    why = "the first parameters come from `fedlm simulate` in /a, which may have used data of the same people"
    result = make_private_result()
    result.summary.update(privacy=f"NOT PRIVATE: {why}", privacy_guarantee=None, not_private_because=[why])
    models = model_results([result])
    assert privacy_marks(models) == [f"NOT PRIVATE: {why}"]
    assert why in sentences([result])
    assert "seed" not in " ".join([*privacy_marks(models), privacy_sentence(models)])
    assert privacy_statements(models) == [("tree, NOT PRIVATE, noise multiplier 7.5", f"NOT PRIVATE: {why}")]


def test_one_private_run_alone_is_no_choice():
    one = [make_private_result(epsilon=5.0), make_result()]
    assert choice_warning(model_results(one)) == []
    assert not any("choosing" in mark for mark in privacy_marks(model_results(one)))
    (warning,) = choice_warning(model_results([*one, make_private_result(epsilon=5.0, seed=1, status="failed")]))
    assert warning.startswith("2 private runs were compared")


@pytest.mark.long
def test_the_page_has_the_table_the_plots_and_details_for_each_privacy(tmp_path):
    source = write_report(make_comparison(MODELS), grid(), tmp_path, "fedlm compare").read_text(encoding="utf-8")
    page = Page(source)
    identifiers = [value for name, value in page.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    assert page.tags.count("svg") == 1 + 5 * 4
    assert page.text.index("At equal privacy") < page.text.index("What the runs guarantee") < page.text.index("Plots")
    assert "<summary>blt, epsilon 20</summary>" in source
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns = ("mechanism", "noise_multiplier", "epsilon", "delta", "rho")
    assert [rows[0][name] for name in columns] == ["tree", "7.5", "5.0", "1e-05", "0.125"]
    assert [rows[8][name] for name in columns] == ["none", "", "", "", ""]
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert {"privacy_utility.png", "upload_tree_epsilon_5.png", "upload_no_noise.png"} < names


@pytest.mark.parametrize(
    ("stated", "target", "words"),
    [
        ((9.0,), 5.0, "tree, epsilon 9"),
        ((4.0, 6.0), None, "tree, epsilon 6"),
        ((None,), None, "tree, no finite epsilon"),
    ],
)
def test_the_epsilon_is_the_largest_that_a_run_states_whatever_was_asked_for(stated, target, words):
    results = [make_private_result(epsilon=5.0, seed=seed) for seed in range(len(stated))]
    for result, epsilon in zip(results, stated, strict=True):
        result.summary["privacy_guarantee"]["epsilon"] = epsilon
        object.__setattr__(result.cell.experiment.privacy, "target_epsilon", target)
    (entry,) = model_results(results)
    assert entry.privacy.words == words
