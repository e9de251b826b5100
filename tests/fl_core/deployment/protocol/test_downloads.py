import jax
import numpy as np
import pytest

from fedlm.fl_core.updates.update_bytes import WireError, download_bytes, pack_parameters, unpack_parameters

RNG = np.random.default_rng(0)
PARAMS = {
    "kernel": RNG.normal(size=(7, 5)).astype(np.float32),
    "scale": np.float32(3.25).reshape(()),
    "nested": [np.asfortranarray(RNG.normal(size=(4, 3)).astype(np.float32))],
}
LIKE = jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float32), PARAMS)


@pytest.mark.parametrize(("encoding", "bytes_each", "error"), [("float32", 4, 0.0), ("bfloat16", 2, 2.0**-8)])
def test_parameters_arrive_as_they_were_up_to_the_encodings_rounding(encoding, bytes_each, error):
    content = b"".join(pack_parameters(PARAMS, encoding))
    assert len(content) == download_bytes(PARAMS) // 4 * bytes_each
    found = unpack_parameters(content, encoding, LIKE)
    for a, b in zip(*map(jax.tree_util.tree_leaves, (found, PARAMS)), strict=True):
        assert a.dtype == np.float32
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=error, atol=0)


@pytest.mark.parametrize(("encoding", "cut"), [("float32", 1), ("bfloat16", 0), ("pickle", 0)])
def test_what_is_not_this_model_is_refused(encoding, cut):
    content = b"".join(pack_parameters(PARAMS))
    with pytest.raises(WireError):
        unpack_parameters(content[: len(content) - cut], encoding, LIKE)
