import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.models.base import batch_loss
from fedlm.models.families.bert import BertConfig, bert
from fedlm.models.families.masked_language import MaskedBatch, mask_id
from fedlm.models.precision import with_precision
from fedlm.models.special_tokens import BOS_ID, EOS_ID, OOV_ID, PAD_ID

DATA_VOCABULARY = 20
MASK = mask_id(DATA_VOCABULARY)
MODEL = bert("small", BertConfig(vocabulary_size=DATA_VOCABULARY, layers=1, heads=2, embedding=8, mlp=32, max_length=7))
INPUTS = np.array([[BOS_ID, 5, MASK, 7, MASK, EOS_ID], [BOS_ID, MASK, 9, EOS_ID, PAD_ID, PAD_ID], [PAD_ID] * 6])
TARGETS = np.array([[PAD_ID, PAD_ID, 6, PAD_ID, OOV_ID, PAD_ID], [PAD_ID, 8, 9, PAD_ID, PAD_ID, PAD_ID], [PAD_ID] * 6])
WEIGHT = np.array([1.0, 1.0, 0.0], np.float32)
APPLY = jax.jit(MODEL.apply)


@pytest.fixture(scope="module")
def params():
    # Larger than freshly drawn, so that logits differ, and not so large that attention sees one token only.
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(MODEL.init, jax.random.key(0))
    return jax.tree_util.tree_map(lambda leaf: 0.5 * rng.normal(size=leaf.shape).astype(np.float32), shapes)


@pytest.mark.long
def test_in_bfloat16_a_row_of_padding_leaves_the_gradient_finite_and_nothing_else_gives_none(params):
    model = with_precision(MODEL, "bfloat16")
    gradient = jax.jit(jax.value_and_grad(lambda params, batch: batch_loss(model, params, batch)[0]))
    loss, found = gradient(params, MaskedBatch(INPUTS, TARGETS, WEIGHT))
    assert np.isfinite(loss)
    assert loss > 0
    assert all(np.all(np.isfinite(leaf)) and leaf.dtype == jnp.float32 for leaf in jax.tree_util.tree_leaves(found))
    padding = np.full_like(INPUTS, PAD_ID)
    loss, found = gradient(params, MaskedBatch(padding, padding, np.ones_like(WEIGHT)))
    assert loss == 0
    assert not any(np.any(leaf) for leaf in jax.tree_util.tree_leaves(found))


def test_every_token_is_seen_from_both_sides_and_padding_from_none(params):
    # Logits depend on each token of the row, but not on what lies in the embedding's row of PAD.
    before = APPLY(params, INPUTS)
    for place in range(INPUTS.shape[1]):
        changed = INPUTS.copy()
        changed[0, place] = 11
        assert np.all(np.any(APPLY(params, changed)[0] != before[0], axis=-1))
    table = params["embedding"]["table"].copy()
    table[PAD_ID] += 1
    changed = APPLY({**params, "embedding": {"table": table}}, INPUTS)
    words = np.arange(MODEL.vocabulary_size) != PAD_ID
    np.testing.assert_array_equal(changed[1, :4][:, words], before[1, :4][:, words])


def test_an_input_longer_than_the_table_of_positions_is_refused(params):
    longest = jax.ShapeDtypeStruct((2, 7), jnp.int32)
    assert jax.eval_shape(MODEL.apply, params, longest).shape == (2, 7, 21)
    with pytest.raises(ValueError, match="inputs have 8 tokens, and this model has positions for 7"):
        jax.eval_shape(MODEL.apply, params, jax.ShapeDtypeStruct((2, 8), jnp.int32))


@pytest.mark.long
def test_parameters_are_drawn_from_a_normal_cut_at_two_deviations_of_a_fiftieth():
    config = BertConfig(vocabulary_size=DATA_VOCABULARY, layers=1, heads=2, embedding=32, mlp=64, max_length=7)
    (block,) = bert("small", config).init(jax.random.key(0))["blocks"]
    kernel = np.asarray(block["mlp_input"]["kernel"])
    # A normal cut at two deviations has a deviation of 0.8796; of 2,048 draws, five standard errors.
    assert np.abs(kernel).max() <= 0.04
    assert abs(kernel.std() / 0.02 - 0.8796) < 5 * 0.8796 / np.sqrt(2 * kernel.size)
    assert not np.any(block["mlp_input"]["bias"])
    assert np.all(np.asarray(block["mlp_norm"]["scale"]) == 1)
