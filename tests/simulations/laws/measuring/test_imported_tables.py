"""Tables measured elsewhere: read by the published columns and by ours, and refused by line."""

import numpy as np
import pytest

from fedlm.fl_core.errors import DataError
from fedlm.simulations.laws.measuring.imported_tables import PUBLISHED_MODELS, import_measurements
from fedlm.simulations.laws.measuring.measurements import read_measurements, write_measurements

PUBLISHED = """,Model,Learning Rate,Iterations,Noise Batch Ratio,Cross Entropy
0,BertTiny,0.0078125,100,0.0,7.5
1,BertTiny,0.0078125,200,0.0,7.25
2,BertMega,0.00390625,200,0.015625,9
"""


def table(tmp_path, text):
    path = tmp_path / "results.csv"
    path.write_text(text)
    return path


def test_the_published_columns_are_read(tmp_path):
    found = import_measurements(table(tmp_path, PUBLISHED))
    assert found.model.tolist() == ["BertTiny", "BertTiny", "BertMega"]
    assert found.parameters.tolist() == [4_500_000, 4_500_000, 778_000_000]
    assert found.step.tolist() == [100, 200, 200]
    assert found.loss.tolist() == [7.5, 7.25, 9.0]
    assert found.noise_batch_ratio.tolist() == [0, 0, 2.0**-6]
    assert set(zip(found.steps, found.batch_size, found.length, found.seed, strict=True)) == {(200, 1024, 512, 0)}
    assert np.isnan(found.loss_error).all()
    write_measurements(found, tmp_path / "m.parquet")
    assert len(read_measurements(tmp_path / "m.parquet")) == 3


@pytest.mark.parametrize(("name", "published"), [("BertTiny", 0.39e6), ("BertBase", 84.9e6), ("BertLarge", 302e6)])
def test_parameters_without_embeddings_are_about_those_of_the_layers(tmp_path, name, published):
    """12 layers width^2 leaves out biases, layer norms and the output's transform."""
    found = import_measurements(table(tmp_path, PUBLISHED.replace("BertMega", name)))
    assert published < found.non_embedding_parameters[2] < 1.07 * published
    assert found.parameters[2] == PUBLISHED_MODELS[name][0]


def test_our_columns_are_read(tmp_path):
    text = "model,learning_rate,step,noise_batch_ratio,loss,seed,loss_error,parameters,non_embedding_parameters\n"
    found = import_measurements(table(tmp_path, text + "mine,0.5,10,0,3,7,0.25,90,60\n"), 8, 16, 20)
    assert {name: column[0] for name, column in found.columns().items()} | {
        "gradient_noise_scale": 0,
        "heldout_loss": 0,
    } == {
        **{"model": "mine", "learning_rate": 0.5, "step": 10, "noise_batch_ratio": 0, "loss": 3, "seed": 7},
        **{"loss_error": 0.25, "parameters": 90, "non_embedding_parameters": 60, "batch_size": 8, "length": 16},
        **{"steps": 20, "gradient_noise_scale": 0, "heldout_loss": 0, "training_examples": 0},
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("Cross Entropy", "Loss"), "has no column for loss; expected .* 'Cross Entropy' or 'loss'"),
        (("7.25", "low"), "line 3: loss is 'low', expected a number"),
        (("7.25", "-inf"), "line 3: loss is -inf, expected a finite number"),
        (("7.25", ""), "line 3: loss is None, expected a number"),
        (("200,0.0,7.25", "200.5,0.0,7.25"), "line 3: step is 200.5, expected a whole number"),
        (("BertMega", "BertHuge"), "line 4: the parameters of the model 'BertHuge' are not known; give columns"),
        (("0.015625", "-1"), "line 4: noise_batch_ratio is -1.0, expected at least 0"),
        (("Iterations", "step,Iterations"), "cannot be read|'step' twice"),
    ],
)
def test_what_does_not_fit_is_refused_by_line(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        import_measurements(table(tmp_path, PUBLISHED.replace(*change)))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.csv: cannot be read"):
        import_measurements(tmp_path / "nothing.csv")
