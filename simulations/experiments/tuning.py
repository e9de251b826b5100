"""What a run is compared with, as its ledger says, and what choosing it costs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedlm.fl_core.privacy.origins.ancestry import TUNING_FIELD
from fedlm.fl_core.runs.capabilities.interface import Capability

if TYPE_CHECKING:
    # The libraries of privacy take a while to load.
    from fedlm.fl_core.privacy.promise.number_of_trials import TrialsLaw


class ComparedWith(Capability):
    """A run is one of several, of which one may be chosen."""

    def __init__(self, tuning: Mapping[str, Any]):
        """Take what the ledger is to say."""
        self._tuning = dict(tuning)

    def law(self) -> "TrialsLaw | None":
        from fedlm.fl_core.privacy.promise.spending import law_of

        return law_of(self._tuning)

    def about(self) -> dict[str, Any]:
        return {TUNING_FIELD: self._tuning}
