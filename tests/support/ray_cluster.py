"""A Ray cluster of this machine, whose nodes can die."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

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
    """Let a node die as a machine does: all its processes at once, whichever of its threads has begun them."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    # Who stands still begins no other process and tells nobody of the end of one.
    raylet.suspend()
    workers = raylet.children(recursive=True)
    for process in [raylet, *workers]:
        process.kill()
    node.all_processes["raylet"][0].process.wait()
    psutil.wait_procs(workers, timeout=60)
