"""FedPer: some layers stay on each person's device, and only the others are sent and averaged.

Source: Arivazhagan et al. 2019, "Federated learning with personalization layers" (algorithms 1 and 2). A client trains
both kinds together, from the server's shared layers and the personal layers that it kept. The server has personal
layers only as they were at first, which is what a new person begins with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from fedlm.fl_core.client_algorithms.interface import (
    Broadcast,
    ClientAlgorithm,
    LocalGradient,
    LocalState,
    check_private,
    filled,
    kept_by_client,
    sent_by_server,
)
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.models.base import Params, parameter_name


def with_personal_layers(algorithm: ClientAlgorithm, layers: Sequence[str]) -> ClientAlgorithm:
    """Keep layers on the devices of clients that train by an algorithm; nothing changes where there are none. Raises
    ConfigurationError where clients do not train."""
    if layers and not algorithm.trains:
        raise ConfigurationError(
            f"{setting('personal_layers')} is {' '.join(layers)}, but clients of this run train nothing, and keep "
            "nothing; leave it out"
        )
    return PersonalLayers(algorithm, tuple(layers)) if layers else algorithm


@dataclass(frozen=True)
class PersonalLayers(ClientAlgorithm):
    """Another algorithm, of which clients keep some layers to themselves.

    Attributes:
      algorithm: what clients do with the gradients of all layers.
      layers: names of parameters, or what these begin with, up to a dot.
    """

    algorithm: ClientAlgorithm
    layers: tuple[str, ...]

    def init_server(self, params: Params) -> Any:
        self._check(params)
        return self.algorithm.init_server(params)

    def init_client(self, params: Params) -> Any:
        return self._split(params, personal=True)

    def init(self, server: Broadcast) -> LocalState:
        return self.begin(server, self.init_client(server.params))

    def begin(self, server: Broadcast, kept: Any) -> LocalState:
        local = self.algorithm.init(_with_own(server, kept))
        return LocalState(local.params, (local.memory, kept))

    def step(
        self, server: Broadcast, local: LocalState, gradient: LocalGradient, learning_rate: jax.typing.ArrayLike
    ) -> LocalState:
        memory, kept = local.memory
        before = LocalState(local.params, memory)
        after = self.algorithm.step(_with_own(server, kept), before, gradient, learning_rate)
        return LocalState(after.params, (after.memory, kept))

    def finish(self, server: Broadcast, local: LocalState) -> Any:
        memory, kept = local.memory
        sent = self.algorithm.finish(_with_own(server, kept), LocalState(local.params, memory))
        return self._split(sent, personal=False)

    def keep(self, local: LocalState) -> Any:
        return self._split(local.params, personal=True)

    def update_server(self, memory: Any, mean: Any) -> tuple[Params, Any]:
        return self.algorithm.update_server(memory, mean)

    def _split(self, tree: Params, personal: bool) -> Params:
        """Leave only one kind of layers; there is None in place of the others."""
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: leaf if self._is_personal(parameter_name(path)) == personal else None, tree
        )

    def _is_personal(self, name: str) -> bool:
        return any(_begins(name, layer) for layer in self.layers)

    def _check(self, params: Params) -> None:
        """Refuse layers that there are not, and an algorithm that needs more of the server than its parameters."""
        kind, given = type(self.algorithm).__name__, setting("personal_layers")
        names = [parameter_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        if unknown := [layer for layer in self.layers if not any(_begins(name, layer) for name in names)]:
            raise ConfigurationError(
                f"{given} names {', '.join(unknown)}, but the model has {', '.join(names)}; give some of these, or "
                "what they begin with up to a dot"
            )
        if all(map(self._is_personal, names)):
            raise ConfigurationError(f"{given} names all of the model, so that nothing would be shared; name fewer")
        if jax.tree_util.tree_leaves(sent_by_server(self.algorithm, params).memory):
            raise ConfigurationError(
                f"{given} with the client algorithm {kind}: the server would remember some of the personal layers; "
                "take another client algorithm, or leave the layers out"
            )
        if jax.tree_util.tree_leaves(kept_by_client(self.algorithm, params)):
            raise ConfigurationError(
                f"{given} with the client algorithm {kind}, whose clients keep something else already; let it keep "
                "these layers too, or take another"
            )
        # What else a client sends might tell of its own layers.
        check_private(self.algorithm, params)


def _with_own(server: Broadcast, kept: Any) -> Broadcast:
    """Put a client's own layers in the place of the server's."""
    return server._replace(params=filled(kept, server.params))


def _begins(name: str, layer: str) -> bool:
    return name == layer or name.startswith(layer + ".")
