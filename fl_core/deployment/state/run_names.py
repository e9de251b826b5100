"""The name that tells a deployed run, and a folder of it, from all others."""

import secrets
from collections.abc import Sequence
from pathlib import Path

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.deployment.state.retrying import with_retries
from fedlm.fl_core.deployment.state.state_sql import SqlState
from fedlm.fl_core.errors import ConfigurationError, setting

_RUN_FILE = "run"


def run_name(directory: Path) -> str:
    """Give a run a name that no other has, once."""
    path = directory / _RUN_FILE
    if not path.exists():
        write_atomically(path, secrets.token_hex(16))
    return path.read_text(encoding="utf-8")


def refuse_other_folder(directory: Path, state: SqlState) -> None:
    """Refuse, as a ConfigurationError, a folder of another run than the state is of, before anybody relies on it."""
    path, known = directory / _RUN_FILE, with_retries(state.run)
    if known and (not path.exists() or path.read_text(encoding="utf-8") != known):
        raise ConfigurationError(
            f"{directory}: is not the folder of the run that {state.database.name} is of; a server stands by with the "
            f"same {setting('out')} and {setting('database')} as the one that leads"
        )


class CommonState:
    """A `fedlm.fl_core.runs.lineage.CommonPlace` in a database that may be busy."""

    def __init__(self, state: SqlState):
        self._state = state

    def enter(self, known: Sequence[str], name: str) -> bool:
        return with_retries(lambda: self._state.enter(known, name))

    def entered(self, name: str) -> bool:
        return with_retries(lambda: self._state.entered(name))
