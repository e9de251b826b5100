import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys

import pytest

from fedlm.fl_core.worker_processes import IN_FLIGHT, WorkerPool, cpu_cores, take_cores

SLEEPERS = """
import os, sys, time
from fedlm.fl_core.worker_processes import WorkerPool

def sleep(task):
    print(os.getpid(), flush=True)
    time.sleep(120)

if __name__ == "__main__":
    with WorkerPool(2) as pool:
        list(pool.map(sleep, range(2)))
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_tasks_which_are_taken_as_they_are_needed(workers):
    taken = []

    def tasks():
        for number in range(-10, 10):
            taken.append(number)
            yield number

    with WorkerPool(workers) as pool:
        for done, result in enumerate(pool.map(abs, tasks()), start=1):
            assert result == abs(taken[done - 1])
            assert len(taken) <= done + IN_FLIGHT * workers
    assert len(taken) == done == 20


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    script = tmp_path / "sleepers.py"
    script.write_text(SLEEPERS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True) as parent:
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        parent.kill()
        try:
            parent.communicate(timeout=120)  # which waits until all who could write there have ended
        except subprocess.TimeoutExpired:
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            pytest.fail("workers outlive their parent")


def taken_cores(connection, allowed):
    os.sched_setaffinity(0, allowed)
    take_cores(1)
    connection.send(cpu_cores())
    connection.recv()


def nobody_has_taken(cores):
    """Say whether no other process of this machine, a run beside the tests, holds any of the cores."""
    with contextlib.ExitStack() as stack:
        try:
            for core in cores:
                stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)).bind(f"\0fedlm-core-{core}")
        except OSError:
            return False
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="binds processes to cores as Linux does")
def test_each_process_takes_cores_of_its_own_and_as_many_where_none_is_left():
    context = multiprocessing.get_context("spawn")
    allowed, processes, ends, taken = cpu_cores()[:2], [], [], []
    alone = nobody_has_taken(allowed)
    for _ in range(3):
        end, other = context.Pipe()
        processes.append(context.Process(target=taken_cores, args=(other, allowed)))
        processes[-1].start()
        taken.append(end.recv())
        ends.append(end)
    for end, process in zip(ends, processes, strict=True):
        end.send(None)
        process.join()
    assert [len(cores) for cores in taken] == [1, 1, 1]
    if alone and nobody_has_taken(allowed):
        assert taken[: len(allowed)] == [[core] for core in allowed]
