"""What imports of any kind of data have in common: a folder for what is unfinished, and the reading of a source.

Everything unfinished lies in a hidden folder beside the destination. The same import started again goes on there; an
import of something else begins anew.
"""

import functools
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedlm.fl_core.atomic_files import disk_errors, write_atomically
from fedlm.fl_core.errors import DataError, setting
from fedlm.fl_core.runs.files.run_lock import run_lock
from fedlm.fl_core.worker_processes import WorkerPool
from fedlm.simulations.data.client_text import SkippedCounts
from fedlm.simulations.data.grouping import RunSummary, read_summary, write_run
from fedlm.simulations.data.sources.base import Part, Progress, ReadPart, Source
from fedlm.simulations.data.sources.orders import mixed_forms

_LAYOUT = 3  # of the hidden folder; one of another release is not gone on with


@contextmanager
def import_workspace(out: Path, plan: str) -> Iterator[Path]:
    """Give the folder of what is unfinished of an import into `out`, in which this process alone works.

    It is removed when the block ends; when the block raises, it is kept where there is something to go on with.

    Args:
      out: absolute path of the store to be.
      plan: all that the result depends on; what another plan has left there is removed first.

    Raises:
      DataError: a worker process was killed.
      ConfigurationError: another process imports into `out`.
    """
    workspace = out.with_name(f".{out.name}.import")
    with disk_errors(out):
        workspace.mkdir(parents=True, exist_ok=True)
        with run_lock(workspace):
            try:
                _keep_only_same_plan(workspace, plan)
                yield workspace
            except BaseException as error:
                if not (runs_in(workspace) or any(workspace.glob("decompressed-*"))):  # nothing to go on with
                    shutil.rmtree(workspace, ignore_errors=True)
                if isinstance(error, BrokenProcessPool):
                    raise DataError(
                        "a worker process of the import was killed, perhaps because memory ran out. The same command "
                        f"goes on where it was; give it fewer {setting('workers')}."
                    ) from error
                raise
            shutil.rmtree(workspace)


def describe_source_files(name: str, source: Source) -> dict[str, Any]:
    """Describe a source, with the files that it reads as they are now, for the plan of an import; JSON-able."""
    files = [(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for path in source.files()]
    return {
        "layout": _LAYOUT,
        "source": name,
        "source_settings": jsonable(source),
        "files": hashlib.sha256(json.dumps(files).encode()).hexdigest(),
    }


def read_source(source: Source, workspace: Path, pool: WorkerPool, progress: Progress) -> list[RunSummary]:
    """Let worker processes read the parts of a source that have not been read, and write each as a run.

    Raises DataError where a part cannot be read, or what puts texts in order is not of one form in all of them.
    """
    complete = workspace / "read-complete"
    if not complete.exists():
        reading = source.open(workspace, progress)
        done = 0
        numbered = ((workspace / f"run-{index:08d}.arrow", part) for index, part in enumerate(reading.parts))
        # A part that has been read is passed on only for its size, without its content.
        parts = ((part.size if run.exists() else part, run) for run, part in numbered)
        for size in pool.map(functools.partial(_read_part, reading.read), parts):
            done += size
            progress("read", done, reading.total, reading.unit)
        write_atomically(complete, "")
    for decompressed in workspace.glob("decompressed-*"):  # everything in it has been read
        decompressed.unlink()
    summaries = [read_summary(run) for run in runs_in(workspace)]
    _refuse_mixed_forms(summaries)
    return summaries


def _refuse_mixed_forms(summaries: Sequence[RunSummary]) -> None:
    """Raise DataError where what puts texts in order is not of one form in all of a source."""
    first: dict[str, tuple[str, str, str]] = {}
    for summary in summaries:
        first = summary.order_forms | first
    if mixed := mixed_forms(first):
        field, value, place = first[mixed[1]]
        _, other, other_place = first[mixed[0]]
        raise DataError(
            f"{place}: {field!r} is {value}, {mixed[1]}, and in {other_place} it is {other}, {mixed[0]}, so that it is "
            "not known which comes first. Expected one form in all rows of all files; write them alike, or name "
            "another field."
        )


def skipped_in(summaries: Sequence[RunSummary]) -> SkippedCounts:
    """Add up what was left out when a source was read."""
    skipped = SkippedCounts()
    for summary in summaries:
        skipped.merge(summary.skipped, summary.first_skipped)
    return skipped


def refuse_nothing(source: Source, summaries: Sequence[RunSummary], skipped: SkippedCounts, what: str = "text") -> None:
    """Raise DataError where nothing is left of a source, which was to have `what`."""
    if any(summary.texts for summary in summaries):
        return
    raise DataError(
        f"{name_of(source)}: found no {what} to import. Left out: {left_out(skipped)}. Mend the input, or name others "
        "of its fields."
    )


def name_of(source: Source) -> str:
    """Name the first files of a source, for an error."""
    return ", ".join(map(str, source.files()[:3])) or "the source"


def left_out(skipped: SkippedCounts) -> str:
    """Say in words what has been left out, and where first."""
    places = skipped.first_places()
    reasons = [
        f"{count:,} times {reason}" + (f", first {places[reason]}" if reason in places else "")
        for reason, count in skipped.as_dict().items()
    ]
    return "; ".join(reasons) or "nothing"


def runs_in(workspace: Path) -> list[Path]:
    """Name the runs of the parts that have been read, in the order of the parts."""
    return sorted(workspace.glob("run-*.arrow"))


def jsonable(settings: Any) -> dict[str, Any]:
    """Make a JSON-able dictionary of a dataclass of settings."""
    return json.loads(json.dumps(asdict(settings), default=str))


def _read_part(read: ReadPart, task: tuple[Part | int, Path]) -> int:
    part, run = task
    if isinstance(part, int):
        return part
    skipped = SkippedCounts()
    with disk_errors(run):
        write_run(run, read(part.content, skipped), skipped)
    return part.size


def _keep_only_same_plan(workspace: Path, plan: str) -> None:
    path = workspace / "plan.json"
    if path.exists() and path.read_text(encoding="utf-8") == plan:
        return
    for left in workspace.iterdir():
        if left.is_dir():
            shutil.rmtree(left)
        elif left.name != ".lock":
            left.unlink()
    write_atomically(path, plan)
