"""The budget that a data set may carry, as a run that uses the data keeps to it."""

from typing import TYPE_CHECKING

from fedlm.fl_core.privacy.origins.ancestry import BUDGET_FILE, Phase
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.privacy.origins.vocabulary_origin import VocabularyOrigin, origin_of_data
from fedlm.fl_core.runs.capabilities.interface import Capability, Opening

if TYPE_CHECKING:
    # The libraries of privacy take a while to load.
    from fedlm.fl_core.runs.capabilities.data_budget import DataBudget, Reservation


class Budgeted(Capability):
    """All that a run plans to spend is reserved from the budget of its data."""

    def __init__(self, budget: "DataBudget", vocabulary: VocabularyOrigin):
        """Reserve from the budget of a data set with such a vocabulary."""
        self._budget, self._vocabulary = budget, vocabulary

    @classmethod
    def of(cls, opening: Opening) -> "Budgeted | None":
        if opening.data is None or not (opening.data.path / BUDGET_FILE).exists():
            return None
        from fedlm.fl_core.runs.capabilities.data_budget import budget_of

        budget = budget_of(opening.data.path, opening.private and opening.secret)
        return None if budget is None else cls(budget, origin_of_data(opening.data.path))

    def reservation(self, training: Phase, origins: Origins) -> "Reservation | None":
        from fedlm.fl_core.runs.capabilities.data_budget import reservation_from

        return reservation_from(self._budget, training, origins._replace(vocabulary=self._vocabulary))
