"""Checkpoints of a federated run, by orbax: each is written beside the others and renamed into place when whole."""

import asyncio
import contextlib
import functools
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedlm.fedlm_client.files import sync_to_disk
from fedlm.fl_core.atomic_files import Fence, disk_errors
from fedlm.fl_core.errors import CheckpointError, DiskError, UserError, setting
from fedlm.models.base import Params, parameter_name

if TYPE_CHECKING:
    import orbax.checkpoint as ocp

_UNFINISHED = "*.orbax-checkpoint-tmp"
_TRIES, _TRIED_AGAIN_AFTER = 5, 0.1
_ROOM_BESIDE = 1 << 18
"""Bytes for what a checkpoint has beside its arrays, and for the records that are written with it."""


def _orbax() -> Any:
    # A quarter of a second to import, which the first round of a new run need not wait for.
    import orbax.checkpoint as ocp

    return ocp


class _Lent(np.ndarray):
    """An array that orbax need not copy before it writes it: nobody changes it until that is done."""

    def __deepcopy__(self, memo: Any) -> "_Lent":
        return self


class Checkpoints:
    """The last few checkpoints of one run, used by one process alone; a context manager.

    Attributes:
      directory: where they lie.
    """

    def __init__(self, directory: Path, keep: int = 2, fence: Fence = contextlib.nullcontext):
        """Open or create the folder of checkpoints; what others left unfinished is removed within the fence."""
        self.directory, self._keep, self._fence = directory, keep, fence
        directory.mkdir(parents=True, exist_ok=True)

    @functools.cached_property
    def _manager(self) -> "ocp.CheckpointManager":
        ocp = _orbax()
        # Of several processes only the one that writes calls orbax, which would wait for the others by default.
        this = jax.process_index()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=self._keep,
            enable_async_checkpointing=False,
            create=False,
            multiprocessing_options=ocp.options.MultiprocessingOptions(primary_host=this, active_processes={this}),
        )
        return ocp.CheckpointManager(self.directory.absolute(), options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exception: object) -> None:
        if "_manager" in vars(self):
            self._manager.close()

    def latest_round(self) -> int:
        """Say how many rounds the newest whole checkpoint has seen, 0 where there is none."""
        return max(self.all_rounds(), default=0)

    def all_rounds(self) -> list[int]:
        """List the whole checkpoints."""
        nothing_yet = "_manager" not in vars(self) and not any(self.directory.iterdir())
        return [] if nothing_yet else list(self._manager.all_steps())

    def save(self, rounds: int, state: Any, about: dict[str, Any]) -> None:
        """Save a pytree of arrays, the server's state for one; when this returns, it is on disk. Raises DiskError where
        it cannot be written; nothing of it stays."""
        if rounds in self._manager.all_steps():
            return
        # What an interrupted process left behind would lie there for ever.
        self._clear_unfinished()
        arrays = jax.tree_util.tree_map(lambda leaf: np.asarray(leaf).view(_Lent), jax.device_get(state))
        self.check_room(arrays)
        args = _orbax().args
        digests = {name: _digest(leaf) for name, leaf in _named(arrays)}
        items = args.Composite(
            state=args.StandardSave(arrays), about=args.JsonSave(about), digests=args.JsonSave(digests)
        )
        with disk_errors(self.directory / str(rounds)), self._nothing_unfinished(), _tensorstore_errors():
            self._manager.save(rounds, args=items)
            self._manager.wait_until_finished()
            for path in (self.directory / str(rounds)).rglob("*"):
                sync_to_disk(path)
            sync_to_disk(self.directory)

    @contextlib.contextmanager
    def _nothing_unfinished(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            # Threads of orbax that have not noticed yet that another has failed go on writing for a moment.
            for _ in range(_TRIES):
                # What is there is another's where that one leads now.
                with contextlib.suppress(UserError):
                    self._clear_unfinished()
                time.sleep(_TRIED_AGAIN_AFTER)
            raise

    def _clear_unfinished(self) -> None:
        with self._fence():
            for path in self.directory.glob(_UNFINISHED):
                shutil.rmtree(path, ignore_errors=True)

    def check_room(self, state: Any) -> None:
        """Make sure that the disk has room for a checkpoint, before anything depends on its being written. Raises
        DiskError where the disk has too little left."""
        needed = sum(np.asarray(leaf).nbytes for leaf in jax.tree_util.tree_leaves(state)) + _ROOM_BESIDE
        left = shutil.disk_usage(self.directory).free
        if left < needed:
            raise DiskError(
                f"{self.directory}: a checkpoint needs {needed} bytes, but the disk has {left} left. Make room, then "
                "give the same command again."
            )

    def restore_about(self, rounds: int) -> dict[str, Any]:
        """Read the facts that were saved with a checkpoint. Raises CheckpointError where they cannot be read."""
        return self._restore(rounds, about=_orbax().args.JsonRestore()).about

    def restore_state(self, rounds: int, like: Any) -> Any:
        """Read the server's state. Raises CheckpointError where it cannot be read, or has another structure."""
        template = jax.tree_util.tree_map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)
        restored = self._restore_checked(rounds, _orbax().args.StandardRestore(template))
        for found, expected in zip(*map(jax.tree_util.tree_leaves, (restored, template)), strict=True):
            if found.shape != expected.shape:
                raise CheckpointError(
                    f"{self.directory / str(rounds)}: holds an array of shape {found.shape} where the model has "
                    f"{expected.shape}; it was written for another model"
                )
        return restored

    def restore_arrays(self, rounds: int) -> Any:
        """Read a pytree as it was saved, without knowing its structure. Returns NumPy arrays in dictionaries and lists;
        the fields of a named tuple become keys. Raises CheckpointError where it cannot be read."""
        return self._restore_checked(rounds, _orbax().args.StandardRestore())

    def _restore_checked(self, rounds: int, how: Any) -> Any:
        """Read arrays, and refuse them as a CheckpointError where a bit has changed since they were written."""
        found = self._restore(rounds, state=how, digests=_orbax().args.JsonRestore())
        written = dict(found.digests)
        for name, leaf in _named(found.state):
            # An array of another shape is of another model, or of a state that was read in another form.
            if written.pop(name, None) != _digest(leaf):
                raise CheckpointError(
                    f"{self.directory / str(rounds)}: its array {name} is not what was written: the file was changed "
                    f"or is damaged; remove that folder to go on from the one before it, or start again with another "
                    f"{setting('out')}"
                )
        return found.state

    def _restore(self, rounds: int, **items: Any) -> Any:
        try:
            with _patient_loops():
                return self._manager.restore(rounds, args=_orbax().args.Composite(**items))
        except Exception as error:
            raise CheckpointError(
                f"{self.directory / str(rounds)}: this checkpoint cannot be read ({_first_line(error)}); remove that "
                f"folder to go on from the one before it, or start again with another {setting('out')}"
            ) from error


class _PatientLoop(asyncio.SelectorEventLoop):
    """A loop that first ends what was begun in it."""

    def close(self) -> None:
        if begun := () if self.is_closed() else asyncio.all_tasks(self):
            self.run_until_complete(asyncio.gather(*begun, return_exceptions=True))
        super().close()


class _PatientPolicy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return _PatientLoop()


@contextlib.contextmanager
def _patient_loops() -> Iterator[None]:
    # Where an array cannot be read, orbax closes its loop at once, and each array that is still being read would print
    # a traceback.
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(_PatientPolicy())
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(before)


def _named(arrays: Any) -> list[tuple[str, Any]]:
    """List arrays by their places, which are the same whether they are read into their structure or into dictionaries
    and lists."""
    leaves = jax.tree_util.tree_flatten_with_path(arrays)[0]
    return [(parameter_name(path, "/"), leaf) for path, leaf in leaves]


def _digest(array: Any) -> str:
    found = np.ascontiguousarray(array)
    return hashlib.sha256(found.reshape(-1).view(np.uint8).data).hexdigest()


def parameters_digest(params: Params) -> str:
    """Compute the SHA-256 of all leaves' bytes, in hex: equal exactly where every bit is."""
    digest = hashlib.sha256()
    for leaf in jax.tree_util.tree_leaves(jax.device_get(params)):
        digest.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


@contextlib.contextmanager
def _tensorstore_errors() -> Iterator[None]:
    """Turn what tensorstore makes of an error of the operating system into that error again."""
    try:
        yield
    except ValueError as error:
        found = re.search(r"\[os_error_code='(\d+)'\]", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1]))) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
