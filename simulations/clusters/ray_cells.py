"""Cells executed by the nodes of a Ray cluster, one on each CPU or accelerator that Ray has to give.

Results, and the checkpoints that a cell goes on from, lie in a folder that all nodes see by the same path; only rows of
progress travel through Ray.
"""

import importlib.metadata
import importlib.util
import logging
import os
import pickle
import platform
import signal
import socket
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlm.fl_core.atomic_files import make_folder
from fedlm.fl_core.deployment.host_and_port import AddressError, read_address
from fedlm.fl_core.errors import ConfigurationError, UserError, setting
from fedlm.simulations.experiments.cell_execution import MAX_ATTEMPTS, Observer, Task, await_release, execute_cell
from fedlm.simulations.experiments.workers import refuse_more_cores, set_up_jax
from fedlm.simulations.worker_processes import take_cores

AUTOMATIC = "auto"
MOST_LOST_NODES = 5
"""How many nodes may die under one cell before it is given up: it may be what kills them."""
_CONNECTING_SECONDS, _WAITING_SECONDS = 10.0, 0.2
_SAME_ON_NODES = ("JAX_", "XLA_")  # variables of the environment that decide what is computed


@dataclass(frozen=True)
class RayCluster:
    """Executes cells by the nodes of a Ray cluster.

    A cell whose node dies is begun again on another, from its last checkpoint. Where the cluster has accelerators, each
    cell takes one.

    Attributes:
      address: HOST:PORT of the cluster's head; `auto` finds the cluster that this machine belongs to.
      most: how many cells run at the same time; as many as there is room for where None.
      cores: of each cell, CPUs that Ray has to give.
    """

    address: str = AUTOMATIC
    most: int | None = None
    cores: int = 1

    def execute(self, cells: Sequence[Task], observe: Observer[Task], total: int) -> dict[Task, str]:
        with _connected(self.address) as ray:
            return _Execution(ray, cells, observe, self.most or len(cells), self.cores).run()


@dataclass(frozen=True)
class _Driver:
    """What a node must have as the driver has it."""

    folder: str
    versions: str
    environment: dict[str, str]

    @classmethod
    def this(cls) -> "_Driver":
        return cls(os.getcwd(), _versions(), {name: os.environ[name] for name in os.environ if _decides(name)})

    def check(self, directory: Path) -> None:
        """Work where the driver does, with its environment. Raises ConfigurationError where this node cannot."""
        node = f"node {platform.node()} of the Ray cluster"
        if _versions() != self.versions:
            raise ConfigurationError(
                f"{node} has {_versions()}, but this command runs with {self.versions}; install the same everywhere"
            )
        if not os.path.isdir(self.folder) or not (Path(self.folder) / directory).is_dir():
            raise ConfigurationError(
                f"{node} does not see {Path(self.folder) / directory}; let data and {setting('out')} lie in a folder "
                "that all nodes see by the same path, and give the command there"
            )
        os.chdir(self.folder)
        for name in [name for name in os.environ if _decides(name)]:
            del os.environ[name]
        os.environ.update(self.environment)


class _Execution:
    """One execution of cells by a connected cluster."""

    def __init__(self, ray: Any, cells: Sequence[Any], observe: Observer[Any], most: int, cores: int):
        self._ray, self._observe, self._most, self._cores = ray, observe, most, cores
        self._cells = {cell.directory: cell for cell in cells}
        needed = {"num_cpus": cores, "num_gpus": _accelerators_of_cell(ray, cores)}
        self._run_on_node = ray.remote(max_retries=0, **needed)(_run_on_node)
        self._rows, self._empty = _row_queue(ray)
        self._driver = _Driver.this()
        self._running: dict[Any, Any] = {}
        self._killed: Counter[Any] = Counter()
        self._lost_nodes: Counter[Any] = Counter()
        self._failures: dict[Any, str] = {}

    def run(self) -> dict[Any, str]:
        """Run the cells. Returns why cells failed."""
        waiting = deque(self._cells.values())
        while waiting or self._running:
            while waiting and len(self._running) < self._most:
                self._begin(waiting.popleft())
            self._pass_rows_on(_WAITING_SECONDS)
            done, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
            for reference in done:
                cell = self._running.pop(reference)
                if self._is_lost(cell, reference):
                    waiting.append(cell)
        self._pass_rows_on(0)
        return self._failures

    def _begin(self, cell: Any) -> None:
        # By it a node shows that it sees the folder of the results.
        make_folder(cell.directory)
        again = bool(self._killed[cell] or self._lost_nodes[cell])
        # JAX, which the cell brings along, reads its environment when it is imported.
        reference = self._run_on_node.remote(
            pickle.dumps(cell), cell.directory, self._driver, self._cores, self._rows, again
        )
        self._running[reference] = cell

    def _pass_rows_on(self, seconds: float) -> None:
        for _ in range(1000):
            try:
                directory, row = self._rows.get(timeout=seconds) if seconds else self._rows.get_nowait()
            except self._empty:
                return
            seconds = 0
            self._observe(self._cells[directory], row)

    def _is_lost(self, cell: Any, reference: Any) -> bool:
        """Say whether a cell has to be begun again; where it has failed, keep why."""
        errors = self._ray.exceptions
        try:
            refusal, failure = self._ray.get(reference)
        except errors.RayTaskError as error:
            # What a cell raises is returned: here its node cannot even begin.
            raise ConfigurationError(f"a node of the Ray cluster cannot run cells: {error.cause!r}") from error
        except (errors.NodeDiedError, errors.WorkerCrashedError, errors.OutOfMemoryError) as error:
            of_node = isinstance(error, errors.NodeDiedError)
            lost, most = (self._lost_nodes, MOST_LOST_NODES) if of_node else (self._killed, MAX_ATTEMPTS)
            lost[cell] += 1
            if lost[cell] < most:
                return True
            what = "node died" if of_node else "process was killed"
            failure = f"its {what} {most} times; was there enough memory?"
        else:
            if refusal is not None:
                raise refusal
        if failure is not None:
            self._failures[cell] = failure
        return False


def _run_on_node(
    pickled: bytes, directory: Path, driver: _Driver, cores: int, rows: Any, again: bool
) -> tuple[UserError | None, str | None]:
    """Run one cell, in a worker of Ray. Returns what does not fit for any cell, and why this one failed."""
    try:
        driver.check(directory)
        refuse_more_cores(cores)
        take_cores(cores)
        set_up_jax()
        cell = pickle.loads(pickled)
        if again:
            await_release(cell)
        return None, execute_cell(cell, lambda row: rows.put((directory, row)))
    except UserError as error:
        return error, None


def _accelerators_of_cell(ray: Any, cores: int) -> int:
    """Say how many accelerators each cell takes: one where there are any. Raises ConfigurationError where no node has
    room for a cell, for which Ray would wait."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    accelerators = int(any(node.get("GPU", 0) >= 1 for node in nodes))
    if any(node.get("CPU", 0) >= cores and node.get("GPU", 0) >= accelerators for node in nodes):
        return accelerators
    most = max((int(node.get("CPU", 0)) for node in nodes), default=0)
    raise ConfigurationError(
        f"{setting('cores')} is {cores}, but no node of the Ray cluster has so many CPUs to give, at most "
        f"{most}{', or none has them beside an accelerator' * accelerators}; give fewer, or start nodes with more "
        "--num-cpus"
    )


def _row_queue(ray: Any) -> tuple[Any, type[Exception]]:
    """Make the queue of rows, on the driver's node, with which the driver would end as well; and name what it raises
    where there is none."""
    from ray.util.queue import Empty, Queue
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here}), Empty


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Be a driver of a cluster, whose tasks end with it."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigurationError(
            "the executor ray needs Ray, which is not installed; pip install 'fedlm[ray]', or in a clone of the "
            "repository pip install -c constraints.txt -e '.[ray]'"
        )
    _refuse_silent(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray._private import worker

    # What Ray tells of dying nodes, in some forty lines each, would be printed among the command's output.
    worker._worker_logs_enabled = False
    with _keeping_sigterm():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigurationError(f"{_no_cluster(address)} ({' '.join(str(error).split())})") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _refuse_silent(address: str) -> None:
    """Refuse an address at which nobody answers; Ray would try it for minutes."""
    address = os.environ.get("RAY_ADDRESS") or address if address == AUTOMATIC else address
    if address == AUTOMATIC:
        return
    try:
        host, port = read_address(address)
    except AddressError as error:
        raise ConfigurationError(f"{setting('ray_address')}: {error}; or auto") from error
    try:
        socket.create_connection((host, port), _CONNECTING_SECONDS).close()
    except OSError as error:
        raise ConfigurationError(f"{_no_cluster(address)} ({error})") from error


def _no_cluster(address: str) -> str:
    where = "that this machine belongs to" if address == AUTOMATIC else f"at {address}"
    return (
        f"no Ray cluster {where} can be joined; start one with `ray start --head`, let the other machines join it, and "
        "give this command on one of them"
    )


@contextmanager
def _keeping_sigterm() -> Iterator[None]:
    """Keep what SIGTERM does, which Ray changes."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _decides(name: str) -> bool:
    return name.startswith(_SAME_ON_NODES)


def _versions() -> str:
    """Say what decides about the bits of a result."""
    found = [f"{name} {importlib.metadata.version(name)}" for name in ("fedlm", "jax", "jaxlib")]
    return f"Python {platform.python_version()}, {', '.join(found)}"
