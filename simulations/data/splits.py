"""Into which split a text goes: as its source says, or by its client, always the same for one client and seed."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from fedlm.fl_core.errors import DataError, setting

SPLITS = ("train", "heldout", "test")


def split_of(client_id: str, seed: int = 0) -> str:
    """Return the client's split: train with probability 80 %, heldout 10 %, test 10 %.

    A client keeps its split whatever other clients there are, on every machine and in every release. Another seed
    gives another, independent split.
    """
    digest = hashlib.sha256(f"{seed}:{client_id}".encode("utf-8", "surrogatepass")).digest()
    tenth = int.from_bytes(digest[:8], "big") * 10 >> 64
    return "train" if tenth < 8 else SPLITS[tenth - 7]


@dataclass(frozen=True)
class SplitRule:
    """A pure function of a client and of what the source says of its text.

    A split that a source with splits of its own lacks is made of a tenth of the users of its train split. Where
    that is heldout, those users' test texts go there too: no user is in train or test and in heldout.
    """

    missing: frozenset[str]  # the splits that the source lacks
    by_user: bool  # whether what the source says is not asked
    seed: int

    @classmethod
    def of_source(cls, found: Collection[str], resplit: bool, seed: int) -> Self:
        """Make the rule for a source that named some splits; `resplit` leaves them out of account.

        Raises:
          DataError: the source has splits, but none to train on.
        """
        by_user = resplit or not found
        if not by_user and "train" not in found:
            raise DataError(
                f"the source has only the splits {', '.join(sorted(found))}, expected a train split. "
                f"Import it together with its train split, or split its users anew with {setting('resplit')}."
            )
        return cls(frozenset(SPLITS) - frozenset(found), by_user, seed)

    def split(self, client_id: str, given: str | None) -> str:
        """Return the split of a text of a client, of which the source says `given`, or nothing."""
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
