"""The settings of a warm start, of any kind of run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlm.fl_core.composed_settings import PartSettings
from fedlm.fl_core.privacy.origins.ancestry import InitialData, check_initial_data


@dataclass(frozen=True, kw_only=True)
class WarmStartSettings(PartSettings):
    """A run whose last parameters this one begins with."""

    init_from: Path | None = None
    """Folder of a run to begin with. This run takes that run's last parameters instead of random ones, and states what
    that run has spent of its people's privacy, too. Both have the same model and vocabulary."""
    initial_data: InitialData = "same"
    """Whose text made the parameters of init-from, and of all runs behind them. same: text of this run's people, or
    unknown text. The statement then composes what a private run spent with what this run spends. A run without privacy
    makes this one NOT PRIVATE. public: public text. disjoint: other people's text. The statement repeats public and
    disjoint as assumptions. In a deployment everybody who may take part is one of its people."""

    def check_run(self, run: Any) -> None:
        check_initial_data(self.init_from, self.initial_data)
