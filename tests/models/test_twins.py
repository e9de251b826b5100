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


by_case = pytest.mark.parametrize(
    ("name", "scaled"), [("cifg_tiny", scaled_gates), ("transformer_tiny", scaled_queries)], ids=["cifg", "transformer"]
)


def logits(small, params):
    return np.asarray(small.apply(params, random_batch().tokens[:, :-1]))


@by_case
def test_scale_invariant_models_feel_no_scale_of_what_their_activations_take(name, scaled):
    small = SMALL_MODELS["si_" + name]
    np.testing.assert_array_equal(logits(small, scaled(small.params)), logits(small, small.params))


@by_case
def test_standard_models_feel_it(name, scaled):
    small = SMALL_MODELS[name]
    assert np.abs(logits(small, scaled(small.params)) - logits(small, small.params)).max() > 0.01


def test_a_gain_is_1_at_first():
    plain, gained = SMALL_MODELS["si_cifg_unit_rms_tiny"], SMALL_MODELS["si_cifg_tiny"]
    params = gained.model.init(jax.random.key(5))
    without = {name: part for name, part in params.items() if name != "output_norm"}
    np.testing.assert_array_equal(logits(gained, params), logits(plain, without))


@by_case
def test_twins_start_from_the_same_parameters(name, scaled):
    drawn = [SMALL_MODELS[each].model.init(jax.random.key(5)) for each in (name, "si_" + name)]
    drawn[1].pop("output_norm", None)
    jax.tree_util.tree_map(np.testing.assert_array_equal, *drawn)
