"""Where a deployment stands, read from its folder and its database beside a running server or without one."""

import time
from pathlib import Path
from typing import Any, NamedTuple

from fl_core.errors import CheckpointError
from fl_core.privacy.plan import LEDGER_FILE
from fl_core.privacy.settings import PRIVACY_FOLDER
from fl_core.serving.state import AttemptRecord, ClientCounts
from fl_core.serving.state_sql import DATABASE_FILE, SqlState, sqlite_url
from fl_core.training_runs.metrics_log import read_rows
from fl_core.training_runs.round_rows import NOT_PRIVATE

_ATTEMPTS = 10
_RECENT_SECONDS = 3600.0


class DeploymentStatus(NamedTuple):
    """What is known of a deployment.

    Attributes:
      rows: the metrics rows of all finished rounds.
      attempts: the latest attempts at rounds, the oldest of them first.
      clients: counts of clients.
      spent: what has been spent of privacy, in words.
      planned: what may be spent, in words; None without privacy.
    """

    rows: list[dict[str, Any]]
    attempts: list[AttemptRecord]
    clients: ClientCounts
    spent: str
    planned: str | None


def read_status(folder: Path, database: str | None = None) -> DeploymentStatus:
    """Find out where a deployment stands.

    Args:
      folder: of the run.
      database: URL of its state; SQLite in the folder where None.

    Returns:
      The status.

    Raises:
      CheckpointError: the folder is not that of a deployment.
      StateError: the database cannot be read.
    """
    if database is None and not (folder / DATABASE_FILE).exists():
        raise CheckpointError(f"{folder}: not the folder of a deployment; give the --out of `fedlm serve`")
    state = SqlState(database or sqlite_url(folder / DATABASE_FILE))
    try:
        attempts, clients = state.attempts(_ATTEMPTS), state.client_counts(time.time() - _RECENT_SECONDS)
    finally:
        state.close()
    spent, planned = _privacy(folder / PRIVACY_FOLDER / LEDGER_FILE)
    return DeploymentStatus(read_rows(folder / "metrics.jsonl"), attempts, clients, spent, planned)


def _privacy(ledger_file: Path) -> tuple[str, str | None]:
    if not ledger_file.exists():
        return NOT_PRIVATE, None
    from fl_core.privacy.accounting import account
    from fl_core.privacy.ledger import PrivacyLedger

    ledger = PrivacyLedger(ledger_file)
    planned = account(ledger.plan, ledger.delta).sentence()
    settings = ledger.about.get("experiment", {})
    if settings.get("noise_seed") == "experiment":
        return f"{NOT_PRIVATE}: the noise follows from the experiment's seed", planned
    return ledger.spent().sentence() if ledger.last_release else "nothing was released yet", planned
