"""Releases of one kind as one, and cases that are accounted apart, before any losses are computed."""

import math
from collections.abc import Sequence
from dataclasses import replace

from fedlm.fl_core.privacy.accounting.release_events import ExamplesEvent, GaussianEvent, Plain


def neighbours(events: Sequence[Plain]) -> list[tuple[Plain, ...]]:
    """Tell apart a person who is removed, and one who is added: of truncated rounds neither is the worse for all
    numbers."""
    cases = [event.of_neighbours() if isinstance(event, GaussianEvent) else (event, event) for event in events]
    removed, added = zip(*cases, strict=True) if cases else ((), ())
    return [removed] if removed == added else [removed, added]


def merged(events: Sequence[Plain]) -> tuple[Plain, ...]:
    """Events of one kind as one, and noise that hides everybody equally as a single release of less noise."""
    counts: dict[Plain, int] = {}
    precisions: list[float] = []
    for event in map(_checked, events):
        if isinstance(event, GaussianEvent) and event.sampling_probability == 0:
            continue
        if isinstance(event, GaussianEvent) and event.sampling_probability == 1 and event.most is None:
            precisions.append(event.count / event.noise_multiplier**2)
        else:
            kind = _with_count(event, 1)
            counts[kind] = counts.get(kind, 0) + event.count
    together = [_with_count(event, count) for event, count in counts.items() if count]
    precision = math.fsum(precisions)
    return (*together, *([GaussianEvent(precision**-0.5)] if precision else []))


def _checked(event: Plain) -> Plain:
    """Give the event back, or what is the same: examples that are always drawn are one sum, and so is a single one.

    Raises:
      ConfigurationError: a number of it is out of range.
    """
    event.check()
    if not isinstance(event, ExamplesEvent):
        return event
    if event.sampling_probability in (0, 1):
        return GaussianEvent(event.noise_multiplier / event.examples, event.count, event.sampling_probability)
    if event.examples == 1:
        return GaussianEvent(event.noise_multiplier, event.count, event.sampling_probability)
    return event


def _with_count(event: Plain, count: int) -> Plain:
    return replace(event, count=count)


def only_gaussian(events: Sequence[Plain]) -> float | None:
    """The noise multiplier of events that are a single Gaussian mechanism."""
    if len(events) != 1:
        return None
    (event,) = events
    whole = isinstance(event, GaussianEvent) and event.sampling_probability == 1 and event.most is None
    return event.noise_multiplier if isinstance(event, GaussianEvent) and whole else None
