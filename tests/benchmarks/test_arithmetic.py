"""What published numbers are computed with: sizes of states, and a peer's model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.privacy.noise_cost import CONTESTANTS, plan_of, state_bytes
from benchmarks.simulation.peers.lstm import lstm
from fedlm.fl_core.privacy.mechanisms.registry import make_noise
from fedlm.fl_core.privacy.noise.noise_source import fresh_secret, noise_from


@pytest.mark.parametrize("name", CONTESTANTS)
def test_the_state_of_noise_is_never_larger_than_stated(name):
    like = {"x": np.zeros((4, 5), np.float32)}
    mechanism, draw = make_noise(plan_of(name)), noise_from(fresh_secret(), like)
    state, largest = mechanism.init(like), 0
    for _ in range(70):
        _, state = mechanism.next(state, draw)
        arrays = [leaf for leaf in jax.tree_util.tree_leaves(state) if getattr(leaf, "shape", ()) == (4, 5)]
        largest = max(largest, sum(leaf.nbytes for leaf in arrays))
    assert largest <= state_bytes(name, like)


@pytest.mark.long
def test_the_peers_lstm_computes_what_its_equations_say():
    model = lstm("small", 11, embedding=4, hidden=3)
    params = model.init(jax.random.key(0))
    tokens = np.array([[1, 5, 7], [2, 2, 10]])
    p = jax.tree_util.tree_map(lambda leaf: np.asarray(leaf, np.float64), params)
    h, c, outputs = np.zeros((2, 3)), np.zeros((2, 3)), []
    for t in range(3):
        x = p["embedding"]["table"][tokens[:, t]] * 2
        z = x @ p["input"]["kernel"] + p["input"]["bias"] + h @ p["recurrent"]["kernel"]
        i, f, g, o = np.split(z, 4, axis=-1)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        outputs.append(h @ p["projection"]["kernel"] @ p["embedding"]["table"].T + p["output_bias"])
    np.testing.assert_allclose(model.apply(params, jnp.asarray(tokens)), np.stack(outputs, axis=1), atol=1e-5)
