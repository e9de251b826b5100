"""Our private rounds with noise that another program drew."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fedlm.fl_core.privacy.noise.noise_source import Name
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.private_rounds import PrivateAggregation, PrivateRounds
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.models.base import Params


class RoundsOfGivenTree(PrivateRounds):
    """DP-FTRL by our tree, whose nodes are those of another program's tree.

    Nothing is private about it.
    """

    def __init__(self, residuals: Sequence[Params], clip_norm: float, noise_multiplier: float, clients: int) -> None:
        """Take the noise of each round's sum: what the noise of the sums of all rounds so far grew by."""
        rounds = len(residuals)
        participation = BoundedParticipation(max_participations=rounds, min_separation=1)
        plan = PrivacyPlan(
            mechanism="tree", rounds=rounds, noise_multiplier=noise_multiplier, participation=participation
        )
        super().__init__(PrivateAggregation(plan, clip_norm, clients), bytes(32), residuals[0])
        with jax.enable_x64(True):
            unit = clip_norm * noise_multiplier
            scaled = [jax.tree_util.tree_map(lambda leaf: jnp.asarray(leaf, jnp.float64) / unit, r) for r in residuals]
            self._sums = [jax.tree_util.tree_map(jnp.zeros_like, scaled[0])]
            for residual in scaled:
                self._sums.append(jax.tree_util.tree_map(jnp.add, self._sums[-1], residual))
        self._draw = self._draw_nodes

    def _draw_nodes(self, terms: Sequence[tuple[float, Name]]) -> Params:
        total = jax.tree_util.tree_map(jnp.zeros_like, self._sums[0])
        for coefficient, (_, level, index) in terms:
            # With a node the sum of the rounds up to its last leaf has its noise, and without it up to its first.
            after, before = self._sums[(index + 1) << level], self._sums[index << level]
            total = jax.tree_util.tree_map(
                lambda sums, last, first, times=coefficient: sums + times * (last - first), total, after, before
            )
        return {"delta": total}
