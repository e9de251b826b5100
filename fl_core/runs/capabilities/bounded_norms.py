"""Bounds on the norms of updates, and on what one step can do to a model, for runs without privacy."""

from fedlm.fl_core.rounds.norm_bounds import BoundedMean
from fedlm.fl_core.rounds.round_loop import PlainAveraging
from fedlm.fl_core.rounds.settings import TrainingSettings
from fedlm.fl_core.runs.capabilities.interface import Capability, Opening


class BoundedNorms(Capability):
    """No update counts with a norm that is unusual, and a step that ruins the model is undone."""

    @classmethod
    def of(cls, opening: Opening) -> "BoundedNorms | None":
        training, in_the_field = opening.part(TrainingSettings), opening.data is None
        asked = ("adaptive", "auto") if in_the_field and training.update_clip_norm is None else ("adaptive",)
        return cls() if not opening.private and training.update_norm_bound in asked else None

    def averaging(self, averaging: PlainAveraging) -> PlainAveraging:
        return BoundedMean()

    def undoes(self) -> bool:
        return True
