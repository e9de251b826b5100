"""Where files lie that a run's settings name: by a relative path, they are found from its own folder only."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedlm.fl_core.privacy.origins.ancestry import settings_in

PLACES = "places"


def places_of(settings: dict[str, Any], names: Iterable[str]) -> dict[str, str]:
    """Collect the absolute paths of what settings name, as far as it is there, by the settings' names."""
    named = {name: settings.get(name) for name in names}
    return {
        name: os.path.abspath(path) for name, path in named.items() if isinstance(path, str) and Path(path).exists()
    }


def place_in(about: dict[str, Any], name: str) -> Path | None:
    """Find what a setting of a recorded run names: where the path as it was given leads from here, or else where it led
    from where the run was. The first where there is nothing in either; None where the run has no such setting."""
    given = settings_in(about).get(name)
    if not isinstance(given, str):
        return None
    kept = (about.get(PLACES) or {}).get(name)
    return Path(kept) if kept is not None and not Path(given).exists() and Path(kept).exists() else Path(given)
