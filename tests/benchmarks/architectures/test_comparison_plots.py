"""The picture of a comparison is drawn whatever its runs came to."""

import copy

import numpy as np
import pytest

from benchmarks.architectures.comparison_plots import LONGER, plot

MODELS = ("cifg_tiny", "si_cifg_tiny", "transformer_tiny", "si_transformer_tiny")


def score(mean, std=2.0):
    return {"mean": mean, "std": std, "seeds": 3}


def a_record():
    rng = np.random.default_rng(0)
    models, arms = {}, {"2-bit uploads": {}, "32-bit uploads": {}, "production setting": {}}
    for place, name in enumerate(MODELS):
        curve = 200 + 10 * place + 2000 / np.arange(1, 11)
        selected = {
            "client_learning_rate": 2.0,
            "server_learning_rate": 0.01,
            "test_perplexity": score(200.0 + 10 * place),
            "test_accuracy": score(0.15, 0.01),
            "curve": {"rounds": list(range(10, 101, 10)), "mean": curve.tolist(), "std": (0.05 * curve).tolist()},
            "by_round": {norm: (1 + rng.random(100)).tolist() for norm in ("update_norm", "gradient_norm")},
        }
        grid = [{"heldout_perplexity": score(200.0 + 50 * step)} for step in range(4)] + [{"heldout_perplexity": None}]
        models[name] = {"selected": selected, "grid": grid}
        arms["2-bit uploads"][name] = {"test_perplexity": score(260.0 + 10 * place)}
        arms["32-bit uploads"][name] = {"test_perplexity": score(199.0 + 10 * place)}
        arms["production setting"][name] = {"test_perplexity": None if place == 0 else score(900.0)}
    setting = {"seeds": [0, 1, 2], "rounds": 100, "cohort_size": 20}
    return {"data": "stdlib", "setting": setting, "models": models, "arms": arms}


def test_six_panels_name_every_model():
    figure = plot(a_record())
    figure.canvas.draw()
    assert len(figure.axes) == 6
    for axes in figure.axes[1:4]:
        assert [text.get_text().split("\n")[0] for text in axes.get_xticklabels()] == [
            "CIFG",
            "SI-CIFG",
            "Transformer",
            "SI-Transformer",
        ]
    assert "diverged" in [text.get_text() for text in figure.axes[3].texts]


@pytest.mark.parametrize("missing", ["selected", "test_perplexity", "std", "arms"])
def test_what_is_missing_is_left_out(missing):
    record = copy.deepcopy(a_record())
    if missing == "selected":
        record["models"]["cifg_tiny"]["selected"] = None
    elif missing == "test_perplexity":
        record["models"]["cifg_tiny"]["selected"]["test_perplexity"] = None
    elif missing == "std":
        for model in record["models"].values():
            model["selected"]["curve"]["std"] = model["selected"]["test_perplexity"]["std"] = None
    else:
        record["arms"] = {}
    plot(record).canvas.draw()


def test_curves_go_on_where_runs_did():
    record = a_record()
    longer = {"rounds": [100, 200, 300], "mean": [210.0, 205.0, 204.0], "std": None}
    record["arms"][LONGER] = {"si_cifg_tiny": {"curve": longer}, "cifg_tiny": {"curve": None}}
    curves, _, _, uploads, *_ = plot(record).axes
    assert [line.get_xdata()[-1] for line in curves.get_lines()] == [100, 300, 100, 100]
    assert [text.get_text() for text in uploads.get_legend().get_texts()] == list(a_record()["arms"])
