"""Client algorithms that nobody has registered."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fedlm.fl_core.client_algorithms.interface import ClientAlgorithm, LocalState


@dataclass(frozen=True)
class Remembering(ClientAlgorithm):
    """Uses all that the interface has: clients count their steps and send the count and a gradient beside the delta;
    the server remembers the mean of both, and clients are pulled along the gradient that it remembers."""

    pull: float = 0.1

    def init(self, server):
        return LocalState(server.params, {"steps": jnp.zeros((), jnp.int32), "gradient": server.memory["gradient"]})

    def step(self, server, local, gradient, learning_rate):
        params = gradient.descend(local.params, learning_rate)
        pulled = jax.tree.map(lambda p, g: p - self.pull * learning_rate * g, params, server.memory["gradient"])
        return LocalState(
            pulled, {"steps": local.memory["steps"] + 1, "gradient": gradient.at(server.params).clipped()}
        )

    def finish(self, server, local):
        delta = jax.tree.map(jnp.subtract, server.params, local.params)
        steps = jnp.full((2,), local.memory["steps"], jnp.float32)
        return {"delta": delta, "steps": steps, "gradient": local.memory["gradient"]}

    def init_server(self, params):
        return {"gradient": jax.tree.map(jnp.zeros_like, params), "steps": jnp.zeros(2)}

    def update_server(self, memory, mean):
        return mean["delta"], {"gradient": mean["gradient"], "steps": mean["steps"]}


REMEMBERING = Remembering()
NOT_ONE = Remembering
