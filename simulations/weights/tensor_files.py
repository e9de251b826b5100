"""Tensors by name in safetensors files, which hold numbers and nothing that could run."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.errors import DataError, DiskError

WEIGHTS_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""What tensors may consist of: from the format's names to NumPy's. float32 holds all of them exactly."""
SHARD_BYTES = 5_000_000_000
"""Of a file at most, where one tensor is not larger."""
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class Tensor:
    """A tensor in a file, read when an array is made of it.

    Attributes:
      shape: its shape.
    """

    def __init__(self, path: Path, name: str):
        """Look a tensor up; DataError where the file is damaged."""
        self._path, self._name = path, name
        with _opened(path) as file:
            found = file.get_slice(name)
            self.shape, self._kind = tuple(found.get_shape()), found.get_dtype()

    @property
    def dtype(self) -> str:
        """The name of its type. Raises DataError where that is none of `DTYPES`, as of masks and positions that old
        files have beside the parameters."""
        if self._kind not in DTYPES:
            raise DataError(
                f"{self._path}: tensor {self._name} is of the type {self._kind}, expected one of {', '.join(DTYPES)}"
            )
        return DTYPES[self._kind]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        import ml_dtypes  # noqa: F401 - tells NumPy of bfloat16

        with _opened(self._path) as file:
            array = file.get_tensor(self._name)
        return array if dtype is None else array.astype(dtype, copy=False)


def open_tensors(folder: Path) -> dict[str, Tensor]:
    """Find the tensors of a folder: in `model.safetensors`, or in several files with an index.

    Raises:
      DataError: a file is missing, cut off or of another kind, or lacks a tensor that the index says it has.
    """
    index = folder / INDEX_FILE
    if not index.exists():
        path = folder / WEIGHTS_FILE
        if not path.exists():
            raise DataError(f"{folder}: has neither {WEIGHTS_FILE} nor {INDEX_FILE}{_about_pickles(folder)}")
        return {name: Tensor(path, name) for name in _names(path)}
    where = _weight_map(index)
    names = {file: set(_names(folder / file)) for file in sorted(set(where.values()))}
    for name, file in where.items():
        if name not in names[file]:
            raise DataError(f"{folder / file}: has no tensor {name}, which {INDEX_FILE} says it has; fetch it again")
    return {name: Tensor(folder / file, name) for name, file in where.items()}


def _about_pickles(folder: Path) -> str:
    found = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if not found:
        return "; give the folder of a model"
    return (
        f", but {found[0]}, a pickle, which could run anything and is never read; fetch the model as safetensors, or "
        "save it as such with `save_pretrained` of transformers"
    )


def _weight_map(index: Path) -> dict[str, str]:
    try:
        found = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        where = {str(name): str(file) for name, file in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{index}: cannot be read ({error!r}), expected an object `weight_map`; fetch it again"
        ) from error
    for file in where.values():
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise DataError(f"{index}: names the file {file!r}, expected safetensors files beside it")
    return where


def _names(path: Path) -> list[str]:
    with _opened(path) as file:
        return list(file.keys())


class _opened:  # noqa: N801 - read as a function
    """A safetensors file opened for reading; what the library cannot read is a DataError."""

    def __init__(self, path: Path):
        from safetensors import SafetensorError, safe_open

        try:
            self._file = safe_open(path, framework="numpy")
        except FileNotFoundError as error:
            raise DataError(f"{path}: there is no such file; fetch the model again, with all its files") from error
        except (SafetensorError, OSError) as error:
            raise DataError(
                f"{path}: is cut off, or no safetensors file ({error}); fetch it again. Its size is "
                f"{path.stat().st_size} bytes"
            ) from error

    def __enter__(self) -> Any:
        return self._file.__enter__()

    def __exit__(self, *exception: Any) -> None:
        self._file.__exit__(*exception)


def write_tensors(folder: Path, tensors: Mapping[str, NDArray[Any]], shard_bytes: int | None = None) -> list[str]:
    """Write tensors into a folder as `open_tensors` reads them: one file, or several with an index where one would be
    larger than `shard_bytes` (`SHARD_BYTES` where None). Returns the files' names."""
    shards = list(_shards(tensors, SHARD_BYTES if shard_bytes is None else shard_bytes))
    files = [
        WEIGHTS_FILE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        for number in range(1, len(shards) + 1)
    ]
    for file, names in zip(files, shards, strict=True):
        write_file(folder / file, {name: tensors[name] for name in names})
    if len(shards) > 1:
        where = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        total = sum(array.nbytes for array in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        files.append(INDEX_FILE)
    return files


def write_file(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write tensors into one file. Raises DiskError where the disk refuses."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    # The library writes what lies in memory, whatever the axes' order.
    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    try:
        save_file(arrays, path, metadata={"format": "pt"})  # which transformers asks for
    except SafetensorError as error:
        raise DiskError(
            f"{path}: cannot be written: {error}. Make room or permit writing there, then give the same command again."
        ) from error


def _shards(tensors: Mapping[str, NDArray[Any]], most: int) -> Iterator[Iterable[str]]:
    names: list[str] = []
    size = 0
    for name, array in tensors.items():
        if names and size + array.nbytes > most:
            yield names
            names, size = [], 0
        names.append(name)
        size += array.nbytes
    yield names
