"""How a deployment stands: what the page, `fedlm status` and the gauges of Prometheus are made from.

It names no client, and holds nothing that a client sent but sums over cohorts.
"""

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fedlm.fl_core.deployment.operations.operator_calls import OperatorCalls
from fedlm.fl_core.deployment.server.client_registry import ClientsSeen
from fedlm.fl_core.deployment.server.round_rules import RoundProgress
from fedlm.fl_core.deployment.server.settings import Deployment
from fedlm.fl_core.deployment.server.training import DeployedTraining
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state import StateError, UnreachableError
from fedlm.fl_core.deployment.state.state_sql import SqlState
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up

if TYPE_CHECKING:
    # A run without privacy need not load the libraries of privacy.
    from fedlm.fl_core.deployment.operations.privacy_budget import PrivacyBudget

STATUS_PAGE = "status.html"
CURVES = ("train_loss", "heldout_loss", "heldout_accuracy")
_POINTS = 400
_ATTEMPTS = 12


class ServerStatus(Protocol):
    """How far rounds are now. Any thread may ask."""

    def progress(self) -> RoundProgress | None:
        """Say how far the attempt is that is open, or was last; None before the first."""
        ...

    def clients_seen(self) -> ClientsSeen:
        """Count the clients that have checked in."""
        ...

    @property
    def draining(self) -> bool:
        """Whether the server is going down."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        ...


class Shown(Protocol):
    """What operators are shown of a process, from any thread; a Prometheus collector too."""

    @property
    def page(self) -> str:
        """The file of the page that shows it."""
        ...

    @property
    def calls(self) -> OperatorCalls | None:
        """What operators may ask of the process beside that; None for nothing."""
        ...

    @property
    def ready(self) -> bool:
        """Whether clients are served, now or soon."""
        ...

    def read(self) -> dict[str, Any] | None:
        """Tell how the deployment stands, as `Overview.read` does; None where another process knows.

        Raises:
          UserError: the database or a file cannot be read.
        """
        ...

    def collect(self) -> Iterable[Metric]:
        """See `prometheus_client.registry.Collector.collect`."""
        ...


class ProcessShown:
    """A `Shown` of a process that has nothing to show but whether it serves clients."""

    page, calls = STATUS_PAGE, None

    def __init__(self, database: Database, serves: Callable[[], bool], knows: bool = False):
        """Name the process's database, and what says whether it serves clients while that can be reached.

        Args:
          knows: whether it is this process that tells how the deployment stands, once it can.
        """
        self._database, self._serves, self._knows = database, serves, knows

    @property
    def ready(self) -> bool:
        return self._database.reachable and self._serves()

    def read(self) -> None:
        if self._knows:
            raise UnreachableError(f"{self._database.name}: the server waits for its database")

    def collect(self) -> Iterable[Metric]:
        yield database_reached(self._database.reachable)


class Overview:
    """A `Shown` of the process that runs the rounds."""

    page, calls = STATUS_PAGE, None

    def __init__(self, deployment: Deployment, status: ServerStatus, training: DeployedTraining, state: SqlState):
        self._deployment, self._status = deployment, status
        self._training, self._state = training, state
        self._started = time.monotonic()
        self._budget = _budget(deployment, training)

    def read(self) -> dict[str, Any]:
        """Tell how the deployment stands.

        Returns:
          JSON-able. `run`: model, planned and released rounds, and what it does now. `round`: the attempt that is open,
          or was last, with its funnel; None before the first. `attempts`: the latest that are over, oldest first.
          `totals`: over all attempts. `clients`: how many are known. `curves`: scores by round, with `round` beside
          them, thinned. `latest`: the last round's row. `evaluation`: see `DeployedTraining.evaluation`.
          `participation`: of clients, `planned` and `realised`. `privacy`: of `PrivacyBudget.read`; None without noise.
        """
        rows, progress = list(self._training.rows), self._status.progress()
        return {
            "run": {
                "model": self._deployment.model,
                "rounds": self._deployment.rounds,
                "released": len(rows),
                "doing": self._doing(progress is not None and progress.open),
                "up_seconds": round(time.monotonic() - self._started, 1),
                "time": time.time(),
            },
            "round": None if progress is None else progress._asdict() | {"working": progress.working},
            "attempts": [attempt._asdict() for attempt in self._state.attempts(_ATTEMPTS)],
            "totals": self._state.totals()._asdict(),
            "clients": self._status.clients_seen()._asdict(),
            "curves": curves(rows),
            "latest": rows[-1] if rows else None,
            "evaluation": self._training.evaluation(),
            "participation": self._training.participation(),
            "privacy": None if self._budget is None else self._budget.read(),
        }

    @property
    def ready(self) -> bool:
        """Whether clients are taken into rounds, now or soon."""
        return self._state.reachable and not (self._status.finished or self._status.draining)

    def _doing(self, collecting: bool) -> str:
        if self._status.finished:
            return "finished"
        if self._status.draining:
            return "draining"
        return "collecting" if collecting else "aggregating"

    def collect(self) -> Iterable[Metric]:
        """See `prometheus_client.registry.Collector.collect`."""
        try:
            found = self.read()
        except StateError:
            # The metrics of calls are worth most when something is amiss.
            yield database_reached(False)
            return
        yield database_reached(self._state.reachable)
        run, totals, privacy = found["run"], found["totals"], found["privacy"]
        yield _gauge("fedlm_rounds_released", "Rounds whose model is released.", run["released"])
        yield _gauge("fedlm_rounds_planned", "Rounds that the run is to have.", run["rounds"])
        yield _gauge("fedlm_clients_known", "Clients that ever checked in.", found["clients"]["known"])
        yield _gauge("fedlm_clients_recent", "Clients of the last day.", found["clients"]["within_a_day"])
        attempts = CounterMetricFamily("fedlm_attempts", "Attempts at rounds, by outcome.", labels=["outcome"])
        for outcome in ("finished", "abandoned"):
            attempts.add_metric([outcome], totals[outcome])
        yield attempts
        if found["round"] is not None:
            clients = GaugeMetricFamily("fedlm_round_clients", "Clients of the latest attempt.", labels=["stage"])
            for stage in ("checked_in", "selected", "reported", "dropped", "declined", "working", "goal"):
                clients.add_metric([stage], found["round"][stage])
            yield clients
        yield from _scores(found["latest"])
        if privacy is not None and privacy["private"]:
            terms = f"delta {rounded_up(privacy['delta'])}; unit {privacy['unit']}; adjacency {privacy['adjacency']}"
            epsilon = GaugeMetricFamily("fedlm_epsilon", f"Privacy loss at {terms}.", labels=["of"])
            for name in ("spent", "budget"):
                value = privacy[f"epsilon_{name}"]
                epsilon.add_metric([name], float("inf") if value is None else value)
            yield epsilon


def _budget(deployment: Deployment, training: DeployedTraining) -> "PrivacyBudget | None":
    if training.ledger is None:
        return None
    from fedlm.fl_core.deployment.operations.privacy_budget import PrivacyBudget

    return PrivacyBudget(training.ledger, deployment.privacy.noise_seed != "experiment")


def curves(rows: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """Take curves from the metrics of rounds.

    Returns:
      From the score's name to pairs of round, counted from 1, and score; at most `_POINTS` pairs each, the last among
      them. Scores that no round has are left out.
    """
    found = {}
    for name in CURVES:
        pairs = [[row["round"] + 1, row[name]] for row in rows if row.get(name) is not None]
        step = -(-len(pairs) // _POINTS) if pairs else 1
        if pairs:
            found[name] = pairs[(len(pairs) - 1) % step :: step]
    return found


def _scores(row: dict[str, Any] | None) -> Iterable[Metric]:
    for name in CURVES:
        if row is not None and row.get(name) is not None:
            yield _gauge(f"fedlm_{name}", "Of the last round that has one.", row[name])


def database_reached(reachable: bool) -> Metric:
    """Make the gauge that says whether the database can be reached."""
    return _gauge("fedlm_state_reached", "Whether the database can be reached.", float(reachable))


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(name, words, value)
