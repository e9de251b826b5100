"""How often clients took part, beside what was promised."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fedlm.fl_core.privacy.participation.limits import BoundedParticipation, rounds_in_words


class RealisedParticipation(NamedTuple):
    """How often, and how close together, clients took part: for whoever runs the training, since it was counted without
    noise."""

    clients: int  # that took part at all
    max_participations: int  # of one client, 0 where nobody took part
    min_separation: int | None  # between two rounds of one client; None where nobody took part twice

    @staticmethod
    def of(rounds: Iterable[Sequence[int]]) -> "RealisedParticipation":
        """Count the rounds of each client, in their order."""
        taken = [one for one in rounds if one]
        gaps = (later - earlier for one in taken for earlier, later in itertools.pairwise(one))
        return RealisedParticipation(len(taken), max(map(len, taken), default=0), min(gaps, default=None))

    def beside(self, planned: BoundedParticipation, rounds: int) -> dict[str, Any]:
        """Put it beside what is promised of so many rounds: `planned` and `realised`, JSON-able."""
        promised = {"max_participations": planned.most(rounds), "min_separation": planned.min_separation}
        return {"planned": promised, "realised": self._asdict()}


def participation_in_words(participation: dict[str, Any]) -> str:
    """Say what `RealisedParticipation.beside` put together."""
    planned, realised = participation["planned"], participation["realised"]
    most = f"a client took part in at most {rounds_in_words(realised['max_participations'])}"
    said = f"{most} (the plan allows {planned['max_participations']})"
    if realised["min_separation"] is None:
        return said
    differing = f"in rounds whose numbers differ by at least {realised['min_separation']}"
    return f"{said}, {differing} (the plan asks for {planned['min_separation']})"
