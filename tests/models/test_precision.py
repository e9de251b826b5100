import jax
import jax.extend
import jax.numpy as jnp
import pytest

from fedlm.models.base import batch_loss
from fedlm.models.precision import precision_scope, resolve_precision, with_precision
from fedlm.models.registry import create_model
from tests.models.small_models import SMALL_MODELS, each, random_batch

leaves = jax.tree_util.tree_leaves


@pytest.fixture(params=each(SMALL_MODELS))
def small(request):
    return request.param


@pytest.mark.parametrize(
    ("policy", "platform", "resolved"),
    [
        ("auto", "cpu", "float32"),
        ("auto", "gpu", "tf32"),
        ("auto", "tpu", "bfloat16"),
        ("auto", "some new hardware", "float32"),
        ("bfloat16", "gpu", "bfloat16"),
    ],
)
def test_what_a_policy_means_on_a_platform(policy, platform, resolved):
    assert resolve_precision(policy, platform) == resolved


def test_bfloat16_changes_what_is_computed_alone_and_other_policies_nothing():
    model = create_model("cifg_tiny", 50)
    low = with_precision(model, "bfloat16")
    assert (low.name, low.vocabulary_size, low.init) == (model.name, model.vocabulary_size, model.init)
    assert all(with_precision(model, policy) is model for policy in ("float32", "tf32"))


@pytest.mark.parametrize(("policy", "products"), [("float32", "HIGHEST"), ("tf32", "HIGH"), ("bfloat16", "DEFAULT")])
def test_the_scope_sets_the_precision_of_products(policy, products):
    with precision_scope(policy):
        jaxpr = jax.make_jaxpr(lambda x: x @ x)(jnp.ones((2, 2)))
    assert [precision.name for precision in jaxpr.eqns[0].params["precision"]] == [products] * 2


def test_bfloat16_multiplies_bfloat16_matrices_and_all_else_is_float32(small):
    """Every product, also those inside of the recurrence's loop. Few tokens have most positions: what a GPU adds up one
    after another must be float32, for which it has an instruction, and sums of many narrow numbers would lose the
    small ones."""
    model, batch = with_precision(small.model, "bfloat16"), jax.eval_shape(random_batch)
    text = jax.jit(model.apply).lower(small.params, batch.tokens).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert products
    assert all("xbf16>" in line and "xf32>" not in line for line in products)
    gradient = jax.value_and_grad(lambda params, batch: batch_loss(model, params, batch), has_aux=True)
    backward, results = jax.make_jaxpr(gradient, return_shape=True)(small.params, batch)
    added = [equation.invars[0] for equation in equations(backward.jaxpr) if equation.primitive.name == "scatter-add"]
    assert added
    assert {array.aval.dtype.name for array in added} == {"float32"}
    logits = jax.eval_shape(model.apply, small.params, batch.tokens)
    assert {leaf.dtype.name for leaf in leaves((logits, results))} == {"float32"}


def equations(jaxpr):
    """List all equations, with those of the computations within."""
    within = [jax.extend.core.jaxprs_in_params(equation.params) for equation in jaxpr.eqns]
    return [*jaxpr.eqns, *(one for inner in within for part in inner for one in equations(part))]
