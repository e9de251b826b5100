"""How interactions become sequences of items."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.number_ranges import Count, Seed
from fedlm.simulations.data.vocabulary.private_vocabulary import VocabularyPrivacySettings


@dataclass(frozen=True, kw_only=True)
class RecommendationSettings(VocabularyPrivacySettings):
    """How interactions become sequences of items. The vocabulary is the catalogue: its words are the items.

    Example:
      >>> RecommendationSettings().filtered
      'iterated'
      >>> RecommendationSettings(catalogue=Path("items.txt")).filtered
      'users'
    """

    min_interactions: Count = 5
    """Leave out users and items with fewer interactions; 1 keeps all."""
    filter: Literal["iterated", "once", "users"] | None = None
    """How to leave out users and items. iterated: repeat until all that remain have min_interactions among themselves.
    once: count once, before anything is left out; some that remain then have fewer (SASRec's published preprocessing).
    users: leave out only users, by their own interactions with items of the catalogue. If not given, iterated. A
    catalogue that is given or private allows only users."""
    catalogue: Path | None = None
    """File of all items, one a line; or another store of items, or its tokenizer.json. Interactions with other items
    are left out. Without it the interactions make the catalogue, held-out ones included."""
    validation_item: bool = True
    """Hold out two items of each user: the last for test, the one before for heldout. Without it, hold out only the
    last: for heldout of a tenth of the users, for test of the others."""
    seed: Annotated[Seed, OnlyWith("validation_item", False)] = 0
    """Seed that draws this tenth."""

    def __post_init__(self) -> None:
        check_value_types(self)
        super().__post_init__()
        if self.catalogue is not None and self.vocabulary_epsilon is not None:
            raise ConfigurationError(
                f"{setting('vocabulary_epsilon')} makes a catalogue, and catalogue gives one; leave one of them out"
            )
        if self.catalogue is None and self.vocabulary_origin is not None:
            raise ConfigurationError(
                f"{setting('vocabulary_origin')} is {self.vocabulary_origin!r}, but no catalogue is given; leave it "
                f"out, or give one with {setting('catalogue')}"
            )
        if self.filter in ("iterated", "once") and self.has_catalogue:
            raise ConfigurationError(
                f"{setting('filter')} is {self.filter!r}, which leaves items out by what all users did, but the "
                f"catalogue says which items there are; leave {setting('filter')} out"
            )

    @property
    def has_catalogue(self) -> bool:
        """Whether the catalogue is another than all items that are left."""
        return self.catalogue is not None or self.vocabulary_epsilon is not None

    @property
    def filtered(self) -> Literal["iterated", "once", "users"]:
        """How users and items are filtered."""
        return self.filter or ("users" if self.has_catalogue else "iterated")
