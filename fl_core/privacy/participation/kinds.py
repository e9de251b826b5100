"""Kinds of participation by name, and their form in JSON."""

from dataclasses import asdict
from typing import Any

from fedlm.fl_core.privacy.participation.limits import BoundedParticipation, EpochParticipation, Participation
from fedlm.fl_core.privacy.participation.sampling import (
    BallsInBinsParticipation,
    ExamplesParticipation,
    MinSeparationParticipation,
    PoissonParticipation,
    TruncatedPoissonParticipation,
)

_KINDS: dict[str, Any] = {
    one.kind: one
    for one in (
        PoissonParticipation,
        TruncatedPoissonParticipation,
        BallsInBinsParticipation,
        MinSeparationParticipation,
        ExamplesParticipation,
        BoundedParticipation,
        EpochParticipation,
    )
}


def participation_as_json(participation: Participation) -> dict[str, Any]:
    """Make a JSON-able dictionary, which `participation_from_json` takes."""
    return {"kind": participation.kind, **asdict(participation)}


def participation_from_json(record: dict[str, Any]) -> Participation:
    """Undo `participation_as_json`; raises KeyError or TypeError where it is none."""
    fields = dict(record)
    return _KINDS[fields.pop("kind")](**fields)
