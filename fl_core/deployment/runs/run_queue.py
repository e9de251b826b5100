"""The runs that a server was given, in its database: of each population it trains one after another.

Of its runs whose time has come the one of the highest priority is next, and of equals the one that was submitted first.
A private run is `submitted` until the budget of its population has room for it. Then it is `unapproved` until somebody
approves it, where the server wants that. A run is `queued`, also while it is trained, until something else becomes of
it. A server that was killed chooses anew.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from fedlm.fl_core.deployment.addresses import check_run_name
from fedlm.fl_core.deployment.runs.population_settings import POPULATION_DEFAULTS
from fedlm.fl_core.deployment.runs.scheduling import window_of
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.tables import SUBMISSIONS
from fedlm.fl_core.errors import ConfigurationError, setting

SUBMITTED, UNAPPROVED, QUEUED, PAUSED, STOPPED = "submitted", "unapproved", "queued", "paused", "stopped"
FINISHED, FAILED = "finished", "failed"
MAY_BE_OVERDUE = (SUBMITTED, UNAPPROVED, QUEUED, PAUSED)
_MAY_BECOME = {
    UNAPPROVED: (SUBMITTED,),
    PAUSED: (QUEUED, PAUSED),
    QUEUED: (SUBMITTED, QUEUED, PAUSED, FAILED),
    STOPPED: (SUBMITTED, UNAPPROVED, QUEUED, PAUSED, FAILED, STOPPED),
    FINISHED: (QUEUED, PAUSED, STOPPED, FAILED, FINISHED),
    FAILED: (QUEUED, PAUSED),
}


class SubmittedRun(NamedTuple):
    """A run that a server was given."""

    name: str
    settings: dict[str, Any]
    submitted: float  # seconds since 1970
    state: str
    reason: str  # why it failed, or why the server stopped it; else empty
    first_round: int | None = None  # number of its round 0 among those of its population; None without privacy
    submitted_by: str = ""  # name of the person
    approved_by: str = ""  # empty where nobody had to, or has yet

    @property
    def population(self) -> str:
        """Whose devices train it."""
        return str(self.settings.get("population", POPULATION_DEFAULTS["population"]))

    @property
    def priority(self) -> int:
        """Runs of a higher one are trained first."""
        return self.settings.get("priority", 0)

    @property
    def begins(self) -> float:
        """Seconds since 1970 from which it may be trained."""
        return window_of(self.settings)[0]

    @property
    def ends(self) -> float:
        """Seconds since 1970 at which it is stopped."""
        return window_of(self.settings)[1]


class RunQueue:
    """Any thread may use it. Every method raises `StateError` where the database is busy or gone."""

    def __init__(self, database: Database):
        self._database = database

    def submit(
        self,
        name: str,
        settings: dict[str, Any],
        first_round: Callable[[Sequence[SubmittedRun]], int] | None = None,
        *,
        by: str = "",
    ) -> SubmittedRun:
        """Add a run to the end of the queue, once: the same name with the same settings is the same run.

        Args:
          name: of the run.
          settings: of the run.
          first_round: of all runs there are finds the first round of one that has to reserve, and may refuse it; None
            for a run that is queued at once.
          by: name of the person who submits it.

        Raises:
          ConfigurationError: another run has the name, or it is none.
        """
        check_run_name(name)
        written = json.dumps(settings, sort_keys=True)
        with self._database.writing() as connection:
            known = connection.scalar(sql.select(SUBMISSIONS.c.settings).where(SUBMISSIONS.c.name == name))
            if known is None:
                if window_of(settings)[1] <= time.time():
                    raise ConfigurationError(f"{setting('not_after')} is {settings['not_after']}, which has passed")
                row = {"name": name, "settings": written, "submitted": time.time(), "state": QUEUED, "reason": ""}
                row |= {"submitted_by": by, "approved_by": ""}
                if first_round is not None:
                    row |= {"state": SUBMITTED, "first_round": first_round(_read(connection, sql.true()))}
                connection.execute(sql.insert(SUBMISSIONS).values(**row))
            elif known != written:
                raise ConfigurationError(f"the server has another run {name!r}; give this one another name")
        return self.find(name)

    def approve(self, name: str, by: str) -> SubmittedRun:
        """Queue a run that is unapproved. Raises ConfigurationError where it is not, or its submitter approves it."""
        known = self.find(name)
        if known.state != UNAPPROVED:
            raise ConfigurationError(f"the run {name!r} is {known.state}, and waits for nobody's approval")
        if known.submitted_by == by:
            raise ConfigurationError(f"the run {name!r} was submitted by {by}; somebody else has to approve it")
        with self._database.writing() as connection:
            one = (SUBMISSIONS.c.name == name) & (SUBMISSIONS.c.state == UNAPPROVED)
            changed = connection.execute(sql.update(SUBMISSIONS).where(one).values(state=QUEUED, approved_by=by))
        if not changed.rowcount:
            raise ConfigurationError(f"the run {name!r} was approved or stopped meanwhile; `fedlm run show` tells")
        return self.find(name)

    def withdraw(self, name: str) -> None:
        """Forget a run that the budget has no room for."""
        with self._database.writing() as connection:
            one = (SUBMISSIONS.c.name == name) & (SUBMISSIONS.c.state == SUBMITTED)
            connection.execute(sql.delete(SUBMISSIONS).where(one))

    def find(self, name: str) -> SubmittedRun:
        """Find a run by its name. Raises ConfigurationError where there is none."""
        for run in self._read(SUBMISSIONS.c.name == name):
            return run
        raise ConfigurationError(f"the server has no run {name!r}; `fedlm run list` lists them")

    def all(self) -> list[SubmittedRun]:
        """List all runs in their order."""
        return self._read(sql.true())

    def next_runs(self) -> dict[str, SubmittedRun]:
        """Find the run of each population that is to be trained now, if any is."""
        now, found = time.time(), dict[str, SubmittedRun]()
        for run in self._read(SUBMISSIONS.c.state == QUEUED):
            first = found.get(run.population)
            if run.begins <= now < run.ends and (first is None or run.priority > first.priority):
                found[run.population] = run
        return found

    def overdue(self) -> list[SubmittedRun]:
        """List the runs that should have ended by now, and have not."""
        now = time.time()
        return [run for run in self._read(SUBMISSIONS.c.state.in_(MAY_BE_OVERDUE)) if run.ends <= now]

    def _read(self, which: sql.ColumnElement[bool]) -> list[SubmittedRun]:
        with self._database.reading() as connection:
            return _read(connection, which)

    def become(self, name: str, state: str, reason: str = "") -> SubmittedRun:
        """Say what becomes of a run. Raises ConfigurationError where it cannot become that any more."""
        known = self.find(name)
        with self._database.writing() as connection:
            one = (SUBMISSIONS.c.name == name) & SUBMISSIONS.c.state.in_(_MAY_BECOME[state])
            changed = connection.execute(sql.update(SUBMISSIONS).where(one).values(state=state, reason=reason))
        if not changed.rowcount:
            raise ConfigurationError(f"the run {name!r} is {known.state}, and cannot be {state} any more")
        return self.find(name)


def _read(connection: Connection, which: sql.ColumnElement[bool]) -> list[SubmittedRun]:
    columns = [SUBMISSIONS.c[name] for name in SubmittedRun._fields]
    rows = connection.execute(sql.select(*columns).where(which).order_by(SUBMISSIONS.c.number)).all()
    return [SubmittedRun(*row)._replace(settings=json.loads(row.settings)) for row in rows]
