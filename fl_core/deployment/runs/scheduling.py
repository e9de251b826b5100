"""When a server may train a run, and before which others."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Range


@dataclass(frozen=True, kw_only=True)
class Scheduling:
    """When a server trains a run."""

    priority: Annotated[int, Range(least=-1000, most=1000)] = 0
    """The server trains the run with the highest priority first, and of equals the one that was submitted first. A run
    under way goes on. After a restart the server chooses anew."""
    not_before: str | None = None
    """Moment from which it may be trained, such as 2026-12-01T22:00, or 2026-12-01T22:00+01:00 with a time zone. If
    not given, it may be trained at once."""
    not_after: str | None = None
    """Moment at which it is stopped for good, if it has not ended by then. The round under way has drain-seconds left.
    If not given, it is never stopped."""

    def __post_init__(self) -> None:
        begins, ends = (_moment(name, getattr(self, name)) for name in ("not_before", "not_after"))
        if begins is not None and ends is not None and begins >= ends:
            raise ConfigurationError(
                f"{setting('not_after')} is {self.not_after}, but must be later than {setting('not_before')}, "
                f"{self.not_before}"
            )
        # A server may be in another time zone than who submits a run to it.
        for name, moment in (("not_before", begins), ("not_after", ends)):
            object.__setattr__(self, name, None if moment is None else moment.isoformat())


def _moment(name: str, text: str | None) -> datetime | None:
    """Read the value of a setting of that name; without a time zone it is of this machine's."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"{setting(name)} is {text!r}, but must be a moment such as 2026-12-01T22:00 or 2026-12-01T22:00+01:00"
        ) from error


def window_of(settings: Mapping[str, Any]) -> tuple[float, float]:
    """Give the seconds since 1970 from which, and before which, a run of some settings may be trained."""
    begins, ends = (_moment(name, settings.get(name)) for name in ("not_before", "not_after"))
    return -math.inf if begins is None else begins.timestamp(), math.inf if ends is None else ends.timestamp()
