"""Plans run in a browser by the threads of its page, by LiteRT.js and interpreted: they train and send as JAX does."""

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.devices import __main__ as devices
from benchmarks.devices import litert_web
from tests.deployment.test_javascript_client import built

pytestmark = pytest.mark.long
built = built
MEASURE = Path(devices.__file__).with_name("measure.py")


def rounds(folder, model, bits):
    """The same round by JAX, by LiteRT.js and interpreted: the bytes of the uploads."""
    if why := litert_web.missing():
        pytest.skip(why)
    devices.prepare(folder, model, 6, {"upload_bits": bits})
    litert_web.export_model(folder, model, devices.VOCABULARY, {"upload_bits": bits})
    devices.run([sys.executable, MEASURE, folder, "jax"])
    litert_web.train_in_browser(folder, devices.STREAM)
    return [(folder / f"{runtime}.update").read_bytes() for runtime in ("jax", "litert_web", "interpreter_web")]


@pytest.mark.parametrize("model", ["si_cifg_tiny", "transformer_tiny"])
def test_six_steps_come_to_the_update_of_jax(tmp_path, model):
    ours, *others = (np.frombuffer(one, "<f4").astype(np.float64) for one in rounds(tmp_path, model, 32))
    for theirs in others:
        assert np.linalg.norm(theirs - ours) < 1e-5 * np.linalg.norm(ours)


def test_codes_are_drawn_with_the_same_words(tmp_path):
    ours, *others = (np.frombuffer(one, np.uint8).astype(int) for one in rounds(tmp_path, "transformer_tiny", 8))
    for theirs in others:
        assert ours.shape == theirs.shape
        # Other words would round every second code otherwise; what is left is that updates differ in their last places.
        assert np.mean(ours != theirs) < 1e-3
