"""Reading the HDF5 files in which TensorFlow Federated published its data sets before it used SQLite."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedlm.fl_core.errors import DataError
from fedlm.fl_core.extras import extra
from fedlm.simulations.data.client_text import ClientText, SkippedCounts
from fedlm.simulations.data.sources.base import Part
from fedlm.simulations.data.sources.stackoverflow.text_features import (
    check_feature,
    choose_feature,
    client_text,
    no_text,
    splits_in_names,
)
from fedlm.simulations.data.sources.tables.byte_parts import damage_errors

with extra("data"):
    import h5py

PART_CLIENTS = 100
"""So many clients are one part."""


class Hdf5Part(NamedTuple):
    """Some clients of one file."""

    path: Path
    split: str | None  # train, heldout or test, where the file's name says it
    feature: str  # the one with the text
    client_ids: tuple[str, ...]


def text_feature(path: Path) -> str:
    """Return the name of the feature with the text, found in the first client; raises DataError where there is none."""
    with _opened(path) as clients:
        for client_id in clients:
            return choose_feature(list(_subgroup(path, clients, client_id)), f"{path}, client {client_id!r}")
    raise DataError(f"{path}: the group examples is empty, expected a group for each client.")


def hdf5_parts(paths: Sequence[Path], feature: str) -> list[Part]:
    """Cut files into parts, sized in clients, each of which occurs once in a split."""
    parts = []
    seen: dict[tuple[str | None, str], Path] = {}
    for path, split in zip(paths, splits_in_names(paths), strict=True):
        with _opened(path) as clients:
            client_ids = tuple(clients)
        for client_id in client_ids:
            if (split, client_id) in seen:
                raise DataError(
                    f"{path}: client {client_id!r} is also in {seen[split, client_id]}, of the same split. Expected "
                    "each client once; name each file once."
                )
            seen[split, client_id] = path
        for first in range(0, len(client_ids), PART_CLIENTS):
            some = client_ids[first : first + PART_CLIENTS]
            parts.append(Part(Hdf5Part(path, split, feature, some), len(some)))
    return parts


def read_hdf5(part: Hdf5Part, skipped: SkippedCounts) -> Iterator[ClientText]:
    """Yield the text of one part; raises DataError where the file is damaged, or the feature is not a list of texts."""
    with _opened(part.path) as clients:
        for client_id in part.client_ids:
            where = f"{part.path}, client {client_id!r}"
            with _hdf5_errors(where):
                values = _read_values(part, clients, client_id, where)
            yield from client_text(
                client_id, part.split, enumerate(values, start=1), feature=part.feature, where=where, skipped=skipped
            )


def _read_values(part: Hdf5Part, clients: h5py.Group, client_id: str, where: str) -> list[bytes]:
    client = _subgroup(part.path, clients, client_id)
    check_feature(client, part.feature, where)
    dataset = client[part.feature]
    values: list[Any] = dataset[()].tolist() if isinstance(dataset, h5py.Dataset) and dataset.ndim == 1 else [None]
    if not all(isinstance(value, bytes) for value in values):
        raise no_text(part.feature, repr(dataset), "a list of texts", where)
    return values


@contextmanager
def _opened(path: Path) -> Iterator[h5py.Group]:
    """Open the group with the clients; errors of HDF5 inside the block become `DataError`s."""
    with _hdf5_errors(str(path)), h5py.File(path, "r") as file:
        yield _subgroup(path, file, "examples")


def _subgroup(path: Path, group: h5py.Group, name: str) -> h5py.Group:
    member = group.get(name)
    if not isinstance(member, h5py.Group):
        raise DataError(
            f"{path}: {group.name} holds {', '.join(list(group)[:10]) or 'nothing'}, expected a group {name!r}. "
            "These files have one group for each client, at /examples/CLIENT."
        )
    return member


def _hdf5_errors(place: str) -> AbstractContextManager[None]:
    return damage_errors("HDF5", place, OSError, KeyError, RuntimeError, ValueError)
