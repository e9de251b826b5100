"""Parameters that are not finite are refused by whatever reads the model of a run."""

import jax
import numpy as np
import pytest

from fedlm import UserError
from fedlm.fl_core.runs.files.checkpoints import Checkpoints
from fedlm.fl_core.runs.outcome import refuse_not_finite
from tests.support.untrained import untrained_run

SETTINGS = ("--model=cifg_tiny", "--rounds=1", "--cohort-size=2", "--length=8", "--devices=1")
PRETRAINING = ("--model=cifg_tiny", "--steps=1", "--batch-size=2", "--privacy=none", "--length=8")


@pytest.fixture(scope="module")
def ruined(small_store, tmp_path_factory):
    """A run whose newest checkpoint has a NaN."""
    out = untrained_run(tmp_path_factory.mktemp("ruined") / "run", model="cifg_tiny", data=small_store, length=8)
    with Checkpoints(out / "checkpoints") as checkpoints:
        about, state = checkpoints.restore_about(1), checkpoints.restore_arrays(1)
        leaves, structure = jax.tree_util.tree_flatten(state)
        leaves = [np.where(np.arange(leaf.size).reshape(leaf.shape) == 3, np.nan, leaf) for leaf in leaves]
        state = jax.tree_util.tree_unflatten(structure, [leaf.astype(np.float32) for leaf in leaves])
        checkpoints.save(2, state, about)
    return out


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ("generate", "RUN", "--prompt", "the"),
        ("model", "export", "RUN", "--format=safetensors", "--out=OUT"),
        ("release", "RUN", "--out=OUT"),
        ("simulate", *SETTINGS, "--data=STORE", "--init-from=RUN", "--out=OUT"),
        ("pretrain", *PRETRAINING, "--data=STORE", "--init-from=RUN", "--out=OUT"),
    ],
    ids=" ".join,
)
def test_no_command_reads_them(ruined, small_store, tmp_path, fedlm_here, words):
    places = {"RUN": ruined, "STORE": small_store, "OUT": tmp_path / "out"}
    for name, place in places.items():
        words = tuple(word.replace(name, str(place)) for word in words)
    done = fedlm_here(*words)
    assert done.returncode == 2, done.stdout
    said = f"{ruined}: the checkpoint of 2 rounds or steps has 1 parameters in "
    assert said in done.stderr
    assert "that are no finite numbers: what trained them diverged; give another run" in done.stderr
    assert not (tmp_path / "out" / "summary.json").exists()
    assert not (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_the_tensor_is_named(number):
    refuse_not_finite({"w": np.ones(3, np.float32), "steps": np.arange(3)}, "runs/x")
    with pytest.raises(UserError, match=r"^runs/x has 2 parameters in blocks/0/w that are no finite numbers"):
        refuse_not_finite({"blocks": [{"w": np.array([1, number, number], np.float32)}]}, "runs/x")
