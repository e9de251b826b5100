"""Cells executed by a Ray cluster of two nodes on this machine, of which one dies."""

import dataclasses
import importlib.util
import itertools
import os
import pickle
import queue
import threading
import time
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest

import fedlm
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.runs.run_lock import run_lock
from fedlm.simulations.clusters import ray_cells
from fedlm.simulations.clusters.ray_cells import RayCluster
from fedlm.simulations.experiments.cell_execution import LocalProcesses, run_cells
from fedlm.simulations.experiments.comparison import run_comparison
from tests.simulations.experiments.toy_cells import ToyCell
from tests.support.ray_cluster import kill, two_nodes

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed; pip install -c constraints.txt -e '.[ray]'"
)


@pytest.fixture(scope="module")
def cluster():
    with two_nodes() as cluster:
        yield cluster


@pytest.fixture
def on_node(monkeypatch, tmp_path):
    """Run a cell as a node does, in this process."""
    monkeypatch.setattr(ray_cells, "take_cores", lambda cores: None)
    monkeypatch.setattr(ray_cells, "set_up_jax", lambda: None)
    rows = queue.Queue()
    driver = ray_cells._Driver.this()

    def run(cell, again=False, **changes):
        changed = dataclasses.replace(driver, **changes)
        refusal, failure = ray_cells._run_on_node(pickle.dumps(cell), cell.directory, changed, 1, rows, again)
        return refusal, failure, rows.qsize()

    return run


@needs_ray
@pytest.mark.long
def test_cells_that_fail_or_are_killed_do_not_end_the_others(cluster, tmp_path):
    fates = ("finishes", "fails", "is killed once", "finishes", "is killed")
    cells = [ToyCell(tmp_path / str(number), fate) for number, fate in enumerate(fates)]
    seen = Counter()
    failures = run_cells(cells, RayCluster(cluster[0]), lambda cell, row: seen.update([(cell, row["row"])]))
    assert failures[cells[1]] == "ArithmeticError: the toy is broken"
    assert "its process was killed 2 times" in failures[cells[4]]
    assert len(failures) == 2
    assert [cell.is_finished() for cell in cells] == [True, False, True, True, False]
    assert seen == {(cell, row): 2 if "killed" in cell.fate else 1 for cell in cells for row in range(3)}


@needs_ray
@pytest.mark.long
def test_what_fits_no_cell_is_the_users_to_mend(cluster, tmp_path):
    with pytest.raises(ConfigurationError, match="toys is 0"):
        run_cells([ToyCell(tmp_path, "refuses")], RayCluster(cluster[0]))
    with pytest.raises(ConfigurationError, match="cores is 2, but no node of the Ray cluster has so many CPUs"):
        run_cells([ToyCell(tmp_path)], RayCluster(cluster[0], cores=2))


@pytest.fixture
def mortal_cluster():
    """A cluster of the test's own, since a node of it dies."""
    with two_nodes() as cluster:
        yield cluster


@needs_ray
@pytest.mark.thorough
def test_cells_of_a_node_that_dies_go_on_elsewhere_and_end_with_the_bits_of_local_ones(
    mortal_cluster, small_store, tmp_path
):
    address, other = mortal_cluster
    settings = {"models": ("cifg_tiny",), "data": small_store, "client_learning_rates": (0.5,), "seeds": (0, 1)}
    settings |= {"rounds": 80, "checkpoint_every": 10, "evaluate_every": 80, "heldout_examples": 50}
    comparison = fedlm.compose(fedlm.Comparison, cohort_size=4, length=8, **settings)
    local = run_comparison(comparison, tmp_path / "local", None, executor=LocalProcesses(2, cores=1))
    rounds = {0: [], 1: []}
    died = False

    def observe(cell, row):
        nonlocal died
        rounds[cell.experiment.seed].append(row["round"])
        if not died and all(seen and seen[-1] >= 30 for seen in rounds.values()):
            kill(other)
            died = True

    found = run_comparison(comparison, tmp_path / "ray", None, observe, RayCluster(address))
    assert died
    digests = [[result.summary["parameters_sha256"] for result in results] for results in (local, found)]
    assert digests[0] == digests[1]
    assert [[without_seconds(row) for row in result.rows] for result in local] == [
        [without_seconds(row) for row in result.rows] for result in found
    ]
    steps = [pair for seen in rounds.values() for pair in itertools.pairwise(seen)]
    # None is seen where the node dies just after a checkpoint: then no round is computed twice.
    again = [(before, after) for before, after in steps if after != before + 1]
    assert len(again) <= 1
    for before, after in again:
        assert after >= 20
        assert after % 10 == 0
        assert before - after < 10


def without_seconds(row):
    return {name: value for name, value in row.items() if name != "seconds"}


def test_a_cell_that_is_begun_again_waits_for_who_may_still_run_it(on_node, tmp_path):
    cell = ToyCell(tmp_path / "cell")
    cell.directory.mkdir()
    held = threading.Event()

    def hold():
        with run_lock(cell.directory):
            held.set()
            time.sleep(0.3)
            (cell.directory / "let go").touch()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    assert on_node(cell, again=True) == (None, None, 3)
    assert (cell.directory / "let go").exists()
    holder.join()


def test_a_node_that_is_not_as_the_driver_is_refused(on_node, tmp_path):
    cell = ToyCell(tmp_path / "cell")
    missing, _, _ = on_node(cell)
    assert "does not see" in str(missing)
    assert "a folder that all nodes see by the same path" in str(missing)
    cell.directory.mkdir()
    other, _, _ = on_node(cell, versions="Python 2.7")
    assert "but this command runs with Python 2.7; install the same everywhere" in str(other)
    assert not cell.is_finished()


def test_a_node_computes_in_the_environment_of_the_driver(on_node, tmp_path, monkeypatch):
    cell = ToyCell(tmp_path / "cell")
    cell.directory.mkdir()
    monkeypatch.chdir(tmp_path)
    with patch.dict(os.environ, {"XLA_FLAGS": "--of-the-node", "JAX_OF_THE_NODE": "1"}):
        on_node(cell, environment={"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--of-the-driver"})
        assert Path.cwd() != tmp_path
        found = {name: value for name, value in os.environ.items() if name.startswith(("JAX_", "XLA_"))}
    assert found == {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--of-the-driver"}


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "no Ray cluster at 127.0.0.1:1 can be joined.*ray start --head"),
        ("ray://127.0.0.1:10001", "ray_address: .*must be HOST:PORT.*; or auto"),
        ("nonsense", "ray_address: the address is 'nonsense'"),
        ("::1:10001", r"ray_address: .*\[::1\]:8470"),
    ],
)
def test_an_address_where_no_cluster_answers_is_told_at_once(tmp_path, monkeypatch, address, message):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(ConfigurationError, match=message):
        run_cells([ToyCell(tmp_path)], RayCluster(address))


def test_without_ray_it_is_said_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'fedlm\[ray\]'"):
        run_cells([ToyCell(tmp_path)], RayCluster())
