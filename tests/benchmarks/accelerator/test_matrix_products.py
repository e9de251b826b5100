import jax
import jax.numpy as jnp
import pytest

from benchmarks.accelerator.matrix_products import Product, products_of, total_bytes, total_flops
from benchmarks.accelerator.private_steps import model_flops_a_token
from benchmarks.clipping.steps import draw_batch
from fedlm.models.base import parameter_count
from fedlm.models.registry import create_model


def test_products_are_counted_by_shape_and_type_and_in_loops_as_often_as_these_run():
    def function(x, weights):
        def step(x, _):
            return x @ weights, None

        x = jax.lax.scan(step, x, None, length=7)[0]
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ weights @ weights, lambda x: x, x)

    x, weights = jnp.ones((2, 3), jnp.bfloat16), jnp.ones((3, 3), jnp.bfloat16)
    products = products_of(jax.jit(function), x, weights)
    assert products == {Product(2 * 2 * 3 * 3, 2 * (6 + 9 + 6)): 9}
    assert (total_flops(products), total_bytes(products)) == (9 * 36, 9 * 42)


def test_a_batched_product_contracts_one_axis():
    products = products_of(lambda x, y: jnp.einsum("bij,bjk->bik", x, y), jnp.ones((5, 2, 3)), jnp.ones((5, 3, 4)))
    assert products == {Product(2 * 5 * 2 * 3 * 4, 4 * 5 * (6 + 12 + 8)): 1}


def test_a_loop_of_unknown_length_is_refused():
    def function(x):
        return jax.lax.while_loop(lambda x: x[0, 0] > 0, lambda x: x @ x, x)

    with pytest.raises(ValueError, match="unknown length"):
        products_of(function, jnp.ones((2, 2)))


@pytest.mark.parametrize("name", ["transformer_11m", "cifg_9m"])
def test_a_gradient_takes_about_six_operations_a_parameter_and_token(name):
    model = create_model(name, 4096)
    params = jax.eval_shape(model.init, jax.random.key(0))
    flops = model_flops_a_token(model, params, draw_batch(model, 1, 16), 16)
    assert flops == pytest.approx(6 * parameter_count(model), rel=0.1)
