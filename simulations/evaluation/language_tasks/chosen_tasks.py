"""Tasks of lm-evaluation-harness by their names. Calling what is here needs that library."""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedlm.fl_core.errors import ConfigurationError, DataError, setting


def choose_tasks(names: Sequence[str], folder: Path | None) -> dict[str, Any]:
    """Find tasks by their names and read their data sets.

    Args:
      names: of tasks, groups or tags, of the library or of the folder.
      folder: of tasks in the library's format, which come before the library's own; None for none.

    Returns:
      The library's `TaskDict`: `tasks` by name, those in groups among them, and `groups`.

    Raises:
      ConfigurationError: a name is of no task, or of one that runs code that a model writes, or sees images; two names
        stand for the same task.
      DataError: a task cannot be read, or its data.
    """
    names = [name.strip() for name in names if name.strip()]
    if not names:
        raise ConfigurationError(
            f"{setting('tasks')} names none; give names separated by commas, such as arc_easy,piqa"
        )
    manager = _manager(names, folder)
    for name in names:
        if name not in manager.task_index:
            raise ConfigurationError(f"there is no task {name!r}; {_meant(name, manager.all_tasks, folder)}")
        for task in _members(name, manager.task_index):
            if _settings(task, manager.task_index).get("unsafe_code"):
                raise ConfigurationError(_unsafe(task))
    built = [one for name in dict.fromkeys(names) for one in _build(manager, name)]
    try:
        chosen = manager.load(built)
    except ValueError as error:
        raise ConfigurationError(
            f"{setting('tasks')} are {', '.join(names)}, but must not overlap ({error})"
        ) from error
    for name, task in chosen["tasks"].items():
        if getattr(task, "UNSAFE_CODE", False):
            raise ConfigurationError(_unsafe(name))
        if getattr(task, "MULTIMODAL", False):
            raise ConfigurationError(f"task {name!r} has images or sound, and models here read text alone")
        _refuse_unknown_metrics(name, task)
    return chosen


def _manager(names: Sequence[str], folder: Path | None) -> Any:
    from lm_eval.tasks import TaskManager

    if folder is None:
        return TaskManager()
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; give one of tasks in YAML")
    found = TaskManager(include_path=str(folder), include_defaults=False)
    # To list all of the library's own takes seconds.
    if all(task in found.task_index for name in names for task in _members(name, found.task_index)):
        return found
    _refuse_unreadable(folder)
    return TaskManager(include_path=str(folder))


def _refuse_unreadable(folder: Path) -> None:
    """Raise DataError where a folder has a file that is no YAML, over which the library passes in silence."""
    import yaml

    for path in sorted(folder.rglob("*.yaml")):
        try:
            yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            why = " ".join(str(error).split())
            raise DataError(f"{path}: cannot be read ({why}), expected a task in YAML; mend or remove it") from error


def _refuse_unknown_metrics(name: str, task: Any) -> None:
    """Raise DataError where a task names a metric that nobody knows, which the library would leave out."""
    if task.config.process_results is not None:
        return
    unknown = [metric for metric, function in getattr(task, "_metric_fn_list", {}).items() if function is None]
    if unknown:
        raise DataError(
            f"task {name!r}: names the metric {', '.join(unknown)}, which is none of lm-evaluation-harness; name one "
            "that is, such as acc for multiple choice or exact_match for answers"
        )


def _meant(name: str, names: Sequence[str], folder: Path | None) -> str:
    close = difflib.get_close_matches(name, names, 5)
    listed = "`python -m lm_eval ls tasks` lists the library's"
    where = f", and {folder} has none of that name" if folder is not None else ""
    return f"did you mean {', '.join(close)}?" if close else f"{listed}{where}"


def _unsafe(name: str) -> str:
    return (
        f"task {name!r} runs programs that the model writes, on this machine and with your rights, which is refused "
        "here; leave it out"
    )


def _settings(name: str, index: Any) -> dict[str, Any]:
    entry = index.get(name)
    return (entry.cfg if entry is not None else None) or {}


def _members(name: str, index: Any) -> Iterator[str]:
    """Give the names of the tasks that a name stands for, before any of them is read."""
    entry, listed = index.get(name), _settings(name, index).get("task")
    members = listed if isinstance(listed, list) else [*entry.tags] if entry is not None and entry.cfg is None else None
    if members is None:
        yield name
        return
    for member in members:
        inner = member if isinstance(member, str) else member.get("task", member.get("group"))
        if isinstance(inner, str) and inner != name:
            yield from _members(inner, index)


def _build(manager: Any, name: str) -> list[Any]:
    try:
        loaded = manager.load([name])
    except Exception as error:  # a task is made by whatever its YAML names, of which anything may be raised
        lines = str(error).strip().splitlines()
        raise DataError(
            f"task {name!r}: cannot be read ({type(error).__name__}: {lines[0] if lines else 'it does not say why'}). "
            "If its data set is not in the folder HF_HOME, it is downloaded from huggingface.co. A task of your own "
            "needs the files and fields that its YAML names"
        ) from error
    groups = loaded.get("groups") or {}
    return [groups[name]] if name in groups else [*loaded["tasks"].values()]
