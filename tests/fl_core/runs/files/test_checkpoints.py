import contextlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fl_core.deployment.state.state import NotLeadingError
from fedlm.fl_core.errors import CheckpointError, DiskError
from fedlm.fl_core.rounds.server_optimizers import ServerOptimizerConfig, init_server, server_step
from fedlm.fl_core.runs.files.checkpoints import Checkpoints, parameters_digest

PARAMS = {"w": jnp.arange(6.0).reshape(2, 3), "blocks": [{"b": jnp.ones(4)}, {"b": jnp.zeros(4)}]}


@pytest.mark.parametrize("name", ["fedavg", "fedadam"])
def test_an_optimizers_state_comes_back_bit_for_bit(name, tmp_path):
    config = ServerOptimizerConfig(name=name)
    state = init_server(config, PARAMS)
    for _ in range(3):
        state = server_step(config, state, jax.tree_util.tree_map(jnp.sin, state.params), 0.1)
    with Checkpoints(tmp_path / "c") as checkpoints:
        assert checkpoints.latest_round() == 0
        checkpoints.save(3, state, {"seed": 1})
    with Checkpoints(tmp_path / "c") as checkpoints:
        assert checkpoints.latest_round() == 3
        assert checkpoints.restore_about(3) == {"seed": 1}
        restored = checkpoints.restore_state(3, init_server(config, PARAMS))
    assert jax.tree_util.tree_structure(restored) == jax.tree_util.tree_structure(state)
    for a, b in zip(*map(jax.tree_util.tree_leaves, (restored, state)), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def test_who_is_taken_over_from_removes_nothing_of_what_another_writes(tmp_path, monkeypatch):
    another = tmp_path / "2.orbax-checkpoint-tmp"

    @contextlib.contextmanager
    def fence():
        if another.exists():
            raise NotLeadingError("another leads")
        yield

    def fails(*words, **named):
        another.mkdir()
        raise OSError(28, "no room")

    monkeypatch.setattr("fedlm.fl_core.runs.files.checkpoints._TRIED_AGAIN_AFTER", 0.0)
    with Checkpoints(tmp_path, fence=fence) as checkpoints:
        monkeypatch.setattr(checkpoints._manager, "save", fails)
        with pytest.raises(DiskError):
            checkpoints.save(1, PARAMS, {})
    assert another.exists()


def test_only_the_newest_are_kept_and_a_half_written_one_is_not_taken_for_a_whole_one(tmp_path):
    state = init_server(ServerOptimizerConfig(name="fedavg"), PARAMS)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for rounds in (1, 2, 5):
            checkpoints.save(rounds, state, {})
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["2", "5"]
    (tmp_path / "6.orbax-checkpoint-tmp-0").mkdir()
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest_round() == 5


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    config = ServerOptimizerConfig(name="fedavg")
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, init_server(config, PARAMS), {})
        wider = PARAMS | {"w": jnp.zeros((2, 4))}
        with pytest.raises(CheckpointError, match="1"):
            checkpoints.restore_state(1, init_server(config, wider))
        with pytest.raises(CheckpointError, match="cannot be read"):
            checkpoints.restore_state(1, init_server(config, {"other": jnp.zeros(3)}))


def test_nothing_stays_of_what_the_disk_had_no_room_for(tmp_path, largest_file):
    noise = {"w": np.random.default_rng(0).normal(size=100_000)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, PARAMS, {})
        with largest_file(100_000), pytest.raises(DiskError, match=f"{tmp_path / '2'}"):
            checkpoints.save(2, noise, {})
        assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["1"]
        checkpoints.save(2, noise, {})
        np.testing.assert_array_equal(checkpoints.restore_state(2, noise)["w"], noise["w"])


def test_the_digest_sees_one_changed_bit():
    changed = PARAMS | {"w": PARAMS["w"].at[1, 2].set(np.nextafter(np.float32(5.0), np.float32(6.0)))}
    assert parameters_digest(PARAMS) == parameters_digest(jax.device_get(PARAMS))
    assert parameters_digest(PARAMS) != parameters_digest(changed)


@pytest.mark.long
def test_a_new_run_does_not_wait_for_the_library_of_checkpoints(tmp_path):
    code = (
        "import pathlib, sys\n"
        "from fedlm.fl_core.runs.files.checkpoints import Checkpoints\n"
        f"with Checkpoints(pathlib.Path({str(tmp_path)!r})) as checkpoints:\n"
        "    assert checkpoints.latest_round() == 0\n"
        "print('orbax.checkpoint' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def flip_a_bit(directory, values):
    """Change one bit of an array in the files of a checkpoint, where its bytes lie as they are."""
    content = np.asarray(values).tobytes()
    for path in directory.rglob("*"):
        if path.is_file() and (at := path.read_bytes().find(content)) >= 0:
            changed = bytearray(path.read_bytes())
            changed[at + 5] ^= 1
            path.write_bytes(changed)
            return
    raise AssertionError("the array is nowhere as it is")


def test_one_flipped_bit_is_noticed_by_every_reader(tmp_path):
    # Random bits cannot be compressed.
    values = np.random.default_rng(0).integers(0, 2**31, 4096, dtype=np.int32).view(np.float32)
    state = init_server(ServerOptimizerConfig(name="fedavg"), {"blocks": [{"b": jnp.zeros(3)}, {"b": values}]})
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {})
        checkpoints.restore_state(1, state)
        flip_a_bit(tmp_path, values)
    with Checkpoints(tmp_path) as checkpoints:
        for read in (lambda: checkpoints.restore_arrays(1), lambda: checkpoints.restore_state(1, state)):
            with pytest.raises(CheckpointError, match=r"/1: its array params/blocks/1/b is not what was written"):
                read()


def test_a_damaged_checkpoint_is_one_error_and_nothing_else(tmp_path, monkeypatch):
    heard, random = [], np.random.default_rng(0)
    monkeypatch.setattr(sys, "unraisablehook", heard.append)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {f"w{one}": random.normal(size=3000) for one in range(40)}, {})
        for path in (tmp_path / "1/state/ocdbt.process_0/d").iterdir():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
        for _ in range(5):
            with pytest.raises(CheckpointError, match="this checkpoint cannot be read"):
                checkpoints.restore_arrays(1)
    assert not heard
