"""The settings of a private deployment, and uploads to it byte by byte."""

import secrets
import struct
import zlib

import jax
import numpy as np

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fl_core.updates.compressors import shapes_of
from fedlm.fl_core.updates.update_bytes import plan_digest, upload_bytes
from tests.deployment import small_deployment as small

HONEST = 4
SETTINGS = small.deployment(
    **small.PRIVACY | {"min_separation": 1},
    rounds=2,
    cohort_size=HONEST,
    minimum_reports=HONEST,
    over_selection=10.0,
    selection_seconds=15.0,
    reporting_seconds=5.0,
)
PARAMS = jax.eval_shape(small.task(SETTINGS).model.init, jax.random.key(0))
SIZE = upload_bytes(SETTINGS.training.compressor(), PARAMS)
PLAN = b"FLU2" + plan_digest(SETTINGS.training.compressor().scheme, shapes_of(PARAMS))[:4]


def content_of(smallest=-0.01, step=0.0001, plan=PLAN, params=PARAMS):
    """An upload of 8 bits: for each tensor its smallest value, its step and a byte for each value."""
    tensors = [
        struct.pack("<ff", smallest, step) + np.random.default_rng(0).bytes(leaf.size)
        for leaf in jax.tree_util.tree_leaves(params)
    ]
    body = plan + b"".join(tensors)
    return body + struct.pack("<I", zlib.crc32(body))


def header_of(configuration, **changes):
    honest = {"attempt": configuration.attempt, "upload_id": secrets.token_bytes(16), "outcome": "TRAINED"}
    honest |= {"size": SIZE, "num_examples": 5, "loss": 30.0, "tokens": 20.0, "gradient_norm": 1.0}
    return messages.UploadHeader(**honest | changes)
