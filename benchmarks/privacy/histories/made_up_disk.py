"""A disk at whose every write a process may be killed, and checkpoints without orbax."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.privacy.histories.recorder import Killed, Recorder
from fedlm.fl_core.errors import CheckpointError


def noted_save(recorder: Recorder, real: Any) -> Callable[..., Any]:
    """Make a `RunFolder.save` in which a process may be killed."""

    def save(self: Any, rounds: int, state: Any, about: dict[str, Any]) -> None:
        recorder.moment()
        # A part of the file may be on disk, where others see it, when the process is killed in writing it.
        recorder.see(getattr(state, "server", state).params)
        if recorder.moment_of_saving():
            raise Killed
        real(self, rounds, state, about)
        recorder.moment()

    return save


def torn_write(recorder: Recorder, real: Any) -> Callable[..., int]:
    """Make a `pwrite` of which half may be done when the process is killed."""

    def pwrite(descriptor: int, content: bytes, offset: int) -> int:
        try:
            recorder.moment()
        except Killed:
            real(descriptor, content[: len(content) // 2], offset)
            raise
        return real(descriptor, content, offset)

    return pwrite


def with_moments(recorder: Recorder, real: Any) -> Callable[..., Any]:
    """Make a function before and after which the process may be killed."""

    def call(*arguments: Any, **options: Any) -> Any:
        recorder.moment()
        result = real(*arguments, **options)
        recorder.moment()
        return result

    return call


class FileCheckpoints:
    """What `Checkpoints` does, without orbax, which takes a hundred times as long."""

    def __init__(self, recorder: Recorder, directory: Path, keep: int = 2):
        self._recorder, self.directory, self._keep = recorder, directory, keep
        directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "FileCheckpoints":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def all_rounds(self) -> list[int]:
        return sorted(int(path.name) for path in self.directory.iterdir() if path.name.isdecimal())

    def latest_round(self) -> int:
        return max(self.all_rounds(), default=0)

    def check_room(self, state: Any) -> None:
        pass

    def save(self, rounds: int, state: Any, about: dict[str, Any]) -> None:
        if rounds in self.all_rounds():
            return
        made = self.directory / f"{rounds}.unfinished"
        shutil.rmtree(made, ignore_errors=True)
        (made / "about").mkdir(parents=True)
        (made / "about" / "metadata").write_text(json.dumps(about))
        with (made / "state.npy").open("wb") as file:
            np.save(file, np.array([_as_saved(state)], object), allow_pickle=True)
        os.rename(made, self.directory / str(rounds))
        for old in self.all_rounds()[: -self._keep]:
            shutil.rmtree(self.directory / str(old))

    def restore_about(self, rounds: int) -> dict[str, Any]:
        return json.loads((self.directory / str(rounds) / "about" / "metadata").read_text())

    def restore_arrays(self, rounds: int) -> Any:
        return np.load(self.directory / str(rounds) / "state.npy", allow_pickle=True)[0]

    def restore_state(self, rounds: int, like: Any) -> Any:
        try:
            return _as_like(like, self.restore_arrays(rounds))
        except (KeyError, IndexError, TypeError) as error:
            raise CheckpointError(
                f"{self.directory / str(rounds)}: this checkpoint cannot be read ({error})"
            ) from error


def _as_saved(tree: Any) -> Any:
    if hasattr(tree, "_asdict"):
        return {name: _as_saved(part) for name, part in tree._asdict().items()}
    if isinstance(tree, dict):
        return {name: _as_saved(part) for name, part in tree.items()}
    if isinstance(tree, list | tuple):
        return [_as_saved(part) for part in tree]
    return None if tree is None else np.asarray(tree)


def _as_like(like: Any, saved: Any) -> Any:
    if hasattr(like, "_asdict"):
        return type(like)(**{name: _as_like(part, saved[name]) for name, part in like._asdict().items()})
    if isinstance(like, dict):
        return {name: _as_like(part, saved[name]) for name, part in like.items()}
    if isinstance(like, list | tuple):
        return type(like)(_as_like(part, saved[place]) for place, part in enumerate(like))
    return saved
