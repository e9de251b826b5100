"""A Ray cluster of this machine, whose nodes can die."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_OBJECT_BYTES = 80_000_000  # the least that Ray allows


@contextmanager
def two_nodes() -> Iterator[tuple[str, Any]]:
    """Start a head and another node, of one CPU each. Yields the address and the other one."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    about = {"num_cpus": 1, "object_store_memory": _OBJECT_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **about})
    try:
        other = cluster.add_node(**about)
        yield cluster.address, other
    finally:
        cluster.shutdown()


def kill(node: Any) -> None:
    """Let a node die as a machine does: all its processes at once."""
    raylet = node.all_processes["raylet"][0].process
    workers = Path(f"/proc/{raylet.pid}/task/{raylet.pid}/children").read_text().split()
    for number in [raylet.pid, *map(int, workers)]:
        os.kill(number, signal.SIGKILL)
    raylet.wait()
