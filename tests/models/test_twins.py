"""What tells a scale-invariant model from its standard twin: the scales of some weights that it does not feel."""

import jax
import numpy as np
import pytest

from tests.models.small_models import SMALL_MODELS, random_batch


def scaled_gates(params):
    recurrent = jax.tree_util.tree_map(lambda leaf: 4 * leaf, params["recurrent"])
    recurrent["projection"] = params["recurrent"]["projection"]
    return {**params, "recurrent": recurrent}


def scaled_queries(params):
    return {**params, "blocks": [{**b, "query": {"kernel": 4 * b["query"]["kernel"]}} for b in params["blocks"]]}


def logits(small, params):
    return np.asarray(small.apply(params, random_batch().tokens[:, :-1]))


@pytest.mark.parametrize(
    ("name", "scaled"), [("cifg_tiny", scaled_gates), ("transformer_tiny", scaled_queries)], ids=["cifg", "transformer"]
)
def test_scale_invariant_models_alone_feel_no_scale_of_what_their_activations_take(name, scaled):
    small, twin = SMALL_MODELS[name], SMALL_MODELS["si_" + name]
    np.testing.assert_array_equal(logits(twin, scaled(twin.params)), logits(twin, twin.params))
    assert np.abs(logits(small, scaled(small.params)) - logits(small, small.params)).max() > 0.01
    # Both start from the same parameters.
    drawn = [one.init(jax.random.key(5)) for one in (small, twin)]
    assert not np.any(drawn[1].pop("output_norm", {"scale": 0})["scale"]), "a gain of 1"
    jax.tree_util.tree_map(np.testing.assert_array_equal, *drawn)
