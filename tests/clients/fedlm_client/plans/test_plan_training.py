"""A client of plans comes to what a client that has the model comes to, but for how LiteRT rounds."""

import zlib

import numpy as np
import pytest

from fedlm.fedlm_client.plans.confined import LoadedPlan
from tests.support import plans


def trained(settings):
    """A round by the process with limits and by `local_sgd`: sums and uploads of both."""
    plan, manifest = plans.plan_of(**settings)
    values = plans.sent_values(manifest)
    sequences = plans.examples(11, manifest.batches.length, settings.get("vocabulary", plans.VOCABULARY))
    with LoadedPlan(manifest, plan.manifest, plan.model) as trainer:
        sums, body = plans.train(trainer, manifest, values, sequences)
        # A round begins anew, whatever the one before came to.
        assert plans.train(trainer, manifest, values, sequences) == (sums, body)
    expected, _, upload = plans.trained_natively(values, sequences, manifest.batches, **settings)
    whole = manifest.header + body
    np.testing.assert_allclose(sums, expected, rtol=1e-5)
    assert len(upload) == manifest.upload_bytes
    return whole + zlib.crc32(whole).to_bytes(4, "little"), upload


@pytest.mark.parametrize(
    "settings",
    [
        {"client_epochs": 3, "client_batches_across_epochs": True, "client_max_examples": 7},
        *(
            pytest.param(one, marks=pytest.mark.long)
            for one in (
                {"client_algorithm": "mime_lite", "client_max_examples": 5, "client_cap_order": "cap_then_shuffle"},
                {"model": "cifg_tiny", "client_gradient_clip": 0.1},
                {"model": "si_cifg_tiny"},
                {"model": "cifg_tiny", "client_algorithm": "evaluate", "update_clip_norm": 1.0},
                {"model": "transformer_tiny", "client_algorithm": "fedprox"},
                {"model": "gru4rec", "dropout": 0.2},
            )
        ),
        pytest.param({"model": "si_transformer_tiny", "client_gradient_clip": 0.1}, marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_a_plan_trains_as_local_sgd(settings):
    ours, theirs = (np.frombuffer(one[8:-4], "<f4") for one in trained({"upload_bits": 32} | settings))
    assert np.linalg.norm(ours - theirs) < 1e-5 * np.linalg.norm(theirs)


@pytest.mark.long
@pytest.mark.parametrize("bits", [8, 16])
def test_codes_are_drawn_with_the_same_words(bits):
    ours, theirs = trained({"upload_bits": bits})
    ours, theirs = (np.frombuffer(one[8:-4], np.uint8).astype(int) for one in (ours, theirs))
    # Other words would round every second code otherwise; what is left is that updates differ in their last places.
    assert np.mean(ours != theirs) < (1e-2 if bits == 8 else 5e-2)
