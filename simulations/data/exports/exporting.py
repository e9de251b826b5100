"""From a token store to the form of another program, whole or not at all."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from fedlm.fedlm_client.files import sync_to_disk
from fedlm.fl_core.atomic_files import disk_errors, move_into_place
from fedlm.fl_core.errors import ConfigurationError, DataError, setting
from fedlm.fl_core.runs.files.run_lock import run_lock
from fedlm.simulations.data.exports.base import Export
from fedlm.simulations.data.exports.registry import EXPORTS
from fedlm.simulations.data.federated_data import refuse_completions
from fedlm.simulations.data.sources.base import Progress
from fedlm.simulations.data.store.token_store import TokenStore


@dataclass(frozen=True)
class ExportSummary:
    """What an export wrote."""

    path: Path  # the file or folder
    bytes: int  # its size
    clients: dict[str, int]  # by split
    examples: dict[str, int]  # by split
    reading_lines: list[str]  # three lines of Python that read it


def export_store(
    store: TokenStore,
    name: str,
    out: Path | str,
    *,
    overwrite: bool = False,
    progress: Progress = lambda phase, done, total, unit: None,
) -> ExportSummary:
    """Write a token store in the form of another program, one of `EXPORTS`.

    It grows in a hidden folder beside its destination, is synced to disk and renamed into place at the end. When
    anything fails, the destination is as it was.

    Raises DataError where the store is damaged or has what the form cannot hold, or `out` may not be written;
    ConfigurationError where there is no such form, or another process exports to `out`.
    """
    if name not in EXPORTS:
        raise ConfigurationError(f"{setting('format')} is {name!r}, expected one of: {', '.join(EXPORTS)}")
    export = EXPORTS[name]()
    refuse_completions(store, "an export")
    out = Path(os.path.abspath(out))
    export.check(store)
    workspace = out.with_name(f".{out.name}.export")
    with disk_errors(out):
        _check_destination(export, store, out, overwrite)  # before the long work, not only after it
        workspace.mkdir(parents=True, exist_ok=True)
        with run_lock(workspace):
            try:
                made = _make(export, store, workspace, progress=progress)
                _check_destination(export, store, out, overwrite)
                files = sorted(made.iterdir()) if made.is_dir() else [made]
                for path in {*files, made}:
                    sync_to_disk(path)
                size = sum(path.stat().st_size for path in files)
                move_into_place(made, out, workspace / "replaced")
            finally:
                shutil.rmtree(workspace, ignore_errors=True)
    headers = store.header.splits
    return ExportSummary(
        path=out,
        bytes=size,
        clients={split: header.clients for split, header in headers.items()},
        examples={split: header.examples for split, header in headers.items()},
        reading_lines=export.reading_lines(store, out),
    )


def _make(export: Export, store: TokenStore, workspace: Path, *, progress: Progress) -> Path:
    made = workspace / "made"
    if made.is_dir():  # a killed export may have left it
        shutil.rmtree(made)
    made.unlink(missing_ok=True)
    total = sum(header.examples for header in store.header.splits.values())
    done = 0

    def advance(examples: int) -> None:
        nonlocal done
        done += examples
        progress("export", done, total, "examples")

    export.write(store, made, advance)
    return made


def _check_destination(export: Export, store: TokenStore, out: Path, overwrite: bool) -> None:
    folder = bool(export.endings)
    kind = "folder" if folder else "file"
    if store.path.resolve() in (out.resolve(), *out.resolve().parents):
        raise DataError(f"{out}: is in the token store that is exported. Choose another {setting('out')}.")
    if not out.exists() and not out.is_symlink():
        return
    if out.is_symlink() or not (out.is_dir() if folder else out.is_file()):
        raise DataError(f"{out}: is not a {kind}, so no {kind} can be made there. Choose another {setting('out')}.")
    if folder and not all(path.is_file() and path.name.endswith(export.endings) for path in out.iterdir()):
        raise DataError(f"{out}: has files that no export of this form wrote. Choose another {setting('out')}.")
    if not overwrite and (not folder or any(out.iterdir())):
        raise DataError(
            f"{out}: there is a {kind} already. Choose another {setting('out')}, or pass {setting('overwrite', True)}."
        )
