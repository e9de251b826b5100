"""A client of plans comes to what a client that has the model comes to, bit for bit on JAX."""

import zlib

import numpy as np
import pytest

from fedlm_client import jax_runtime
from fedlm_client.confined import Trainer
from fedlm_client.worker import Training
from tests.support import plans


class Here(Training):
    """Trains in this process, with what a `Trainer` has."""

    def __init__(self, plan, manifest):
        contents = [(plan.step, manifest.step), (plan.finish, manifest.finish)]
        for content, program in contents:
            jax_runtime.check(content, program)
        super().__init__(manifest, *(jax_runtime.load(content, program) for content, program in contents))

    def begin(self, values):
        super().begin(bytearray(values.tobytes()))

    def step(self, tokens, weight, random, rate):
        given = {"tokens": tokens, "weight": weight, "random": random, "learning_rate": np.float32(rate)}
        super().step({name: [value] for name, value in given.items()})

    def finish(self, seed, number, client):
        given = {"seed": seed, "round_number": number, "client_index": client}
        made = super().finish({name: [np.uint32(value)] for name, value in given.items()})
        sums = np.frombuffer(b"".join(made[:3]), "<f4").tolist()
        return sums, made[3] == b"\1\0\0\0", b"".join(made[4:])


def check_equal(trainer, manifest, **settings):
    values = plans.sent_values(manifest)
    sequences = plans.examples(11, manifest.batches.length, settings.get("vocabulary", plans.VOCABULARY))
    sums, body = plans.train(trainer, manifest, values, sequences)
    expected, _, upload = plans.trained_natively(values, sequences, manifest.batches, **settings)
    assert sums == expected
    whole = manifest.header + body
    assert whole + zlib.crc32(whole).to_bytes(4, "little") == upload
    assert len(upload) == manifest.upload_bytes


@pytest.mark.parametrize(
    "settings",
    [
        {"upload_bits": 32, "client_epochs": 3, "client_batches_across_epochs": True, "client_max_examples": 7},
        *(
            pytest.param(one, marks=pytest.mark.long)
            for one in (
                {"upload_bits": 2, "upload_rotation": True, "client_gradient_clip": 0.1},
                {"client_algorithm": "mime_lite", "client_max_examples": 5, "client_cap_order": "cap_then_shuffle"},
                {"model": "cifg_tiny"},
            )
        ),
    ],
    ids=str,
)
def test_a_plan_trains_bit_for_bit_as_local_sgd(settings):
    plan, manifest = plans.plan_of(**settings)
    check_equal(Here(plan, manifest), manifest, **settings)


@pytest.mark.long
def test_the_process_with_limits_comes_to_the_same():
    plan, manifest = plans.plan_of()
    with Trainer(manifest, plan.manifest, "jax", [plan.step, plan.finish]) as trainer:
        check_equal(trainer, manifest)
        check_equal(trainer, manifest)
