"""Into which split a text goes: as its source says, or by its client."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, Self

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.splits import SPLITS, split_of


class SplitSettings(Protocol):
    """The settings that the rule needs."""

    @property
    def resplit(self) -> bool:
        """Whether to split by user even where the source has splits."""
        ...

    @property
    def seed(self) -> int:
        """Seed of the split by user."""
        ...


@dataclass(frozen=True)
class SplitRule:
    """A pure function of a client and of what the source says of its text.

    A split that a source with splits of its own lacks is made of a tenth of the users of its train split. Where
    that is heldout, those users' test texts go there too: no user is in train or test and in heldout.

    Attributes:
      missing: the splits that the source lacks.
      by_user: whether what the source says is not asked.
      seed: of the split by user.
    """

    missing: frozenset[str]
    by_user: bool
    seed: int

    @classmethod
    def of_source(cls, found: Collection[str], settings: SplitSettings) -> Self:
        """Make the rule for a source.

        Args:
          found: the splits that the source named.
          settings: of the import.

        Raises:
          DataError: the source has splits, but none to train on.
        """
        by_user = settings.resplit or not found
        if not by_user and "train" not in found:
            raise DataError(
                f"the source has only the splits {', '.join(sorted(found))}, expected a train split. "
                "Import it together with its train split, or split its users anew with --resplit."
            )
        return cls(frozenset(SPLITS) - frozenset(found), by_user, settings.seed)

    def split(self, client_id: str, given: str | None) -> str:
        """Return the split of a text.

        Args:
          client_id: whose it is.
          given: what the source says, or None.
        """
        by_user = split_of(client_id, self.seed)
        if self.by_user or given is None:
            return by_user
        if by_user in self.missing and (given == "train" or by_user == "heldout"):
            return by_user
        return given

    @property
    def description(self) -> str:
        """The rule in words."""
        if self.by_user:
            return "by user: train 80 %, heldout 10 %, test 10 %"
        made = " and ".join(sorted(self.missing))
        return "as in the source" + (f"; {made} made of a tenth of the users of train" if made else "")
