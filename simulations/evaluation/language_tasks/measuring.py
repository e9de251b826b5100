"""Scoring the model of a run on tasks of lm-evaluation-harness."""

import contextlib
import importlib
import importlib.metadata
import logging
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.errors import ConfigurationError, DataError, setting
from fedlm.fl_core.extras import extra
from fedlm.fl_core.number_ranges import Count, CountOrZero
from fedlm.fl_core.privacy.origins.ancestry import settings_in
from fedlm.fl_core.runs.files.checkpoints import parameters_digest
from fedlm.models.decoding import decoder_of
from fedlm.models.precision import precision_scope, resolve_precision, with_precision
from fedlm.simulations.evaluation.language_tasks.chosen_tasks import choose_tasks
from fedlm.simulations.weights.exporting import read_run

LIBRARY = "lm_eval"
DEFAULT_LENGTH = 2048
"""Tokens of an input, at most, where the model sets no limit: what the harness takes there."""

Observer = Callable[[int, int], None]
"""Called with how many requests are answered, and how many there are in all."""


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """Which tasks, and how."""

    tasks: str | None = None
    """Names of tasks, groups or tags of lm-evaluation-harness, separated by commas, such as `arc_easy,piqa`. The model
    is scored on these instead of clients. The library downloads their data sets from huggingface.co and keeps them in
    HF_HOME; with HF_DATASETS_OFFLINE=1 it only looks there."""
    task_folder: Path | None = None
    """Folder of tasks of your own in the library's format, YAML and data. The library runs Python functions that the
    YAML names, so give only a folder that you trust."""
    num_fewshot: CountOrZero | None = None
    """Solved examples before each question. If not given, as many as each task says."""
    limit: Count | None = None
    """Score only this many of the first documents of each task, to try it out."""
    vocabulary: Path | None = None
    """Tokenizer: its JSON file, or the folder of a data set. If not given, that of the run's data set."""
    batch_size: Count | None = None
    """Inputs scored together on each device. If not given, as many as suit the device and the vocabulary."""

    def __post_init__(self) -> None:
        check_value_types(self)
        for name, least in (("num_fewshot", 0), ("limit", 1), ("batch_size", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigurationError(f"{setting(name)} is {value}, but must be at least {least}")


def measure_tasks(run: Path, settings: TaskSettings, observe: Observer = lambda done, total: None) -> dict[str, Any]:
    """Score the model of a run of any kind on tasks.

    Args:
      run: folder of the run.
      settings: with at least one task.
      observe: see `Observer`.

    Returns:
      JSON-able facts: what was scored, and in `tasks` the metrics of each task, or group, by name. `left_out` names by
      task the documents that the model cannot score, which no metric counts, and why.

    Raises:
      UserError: the library is not installed, a task is not there or is refused, its data cannot be read, or there is
        no model that can be scored.
    """
    refuse_missing_library()
    stored = read_run(run, settings.vocabulary)
    config = stored.entry.config
    precision = resolve_precision(settings_in(stored.about).get("precision", "auto"), jax.default_backend())
    name = str(settings_in(stored.about).get("model"))
    model = with_precision(stored.entry.build(name, config), precision)
    max_length = decoder_of(model).max_length or DEFAULT_LENGTH
    with _quiet_library(), _seeds():
        from lm_eval.evaluator import evaluate

        from fedlm.simulations.evaluation.language_tasks.harness_model import HarnessModel, leave_out_unscored

        chosen = choose_tasks((settings.tasks or "").split(","), settings.task_folder)
        _set_shots(chosen["tasks"].values(), settings.num_fewshot)
        for task in chosen["tasks"].values():
            leave_out_unscored(task)
        done = 0

        def answered(number: int) -> None:
            nonlocal done
            done += number
            observe(done, sum(len(task.instances) * task.config.repeats for task in chosen["tasks"].values()))

        adapter = HarnessModel(
            model,
            stored.params,
            stored.tokenizer,
            max_length=max_length,
            batch_size=settings.batch_size,
            observe=answered,
        )
        with precision_scope(precision), _made(adapter):
            found: Any = evaluate(adapter, task_dict=chosen, limit=settings.limit, log_samples=False)
    _refuse_nothing(chosen["tasks"], found, adapter.unscored)
    return {
        "run": str(run),
        "model": name,
        "parameters_sha256": parameters_digest(stored.params),
        "privacy": stored.privacy,
        "library": f"{LIBRARY} {importlib.metadata.version(LIBRARY)}",
        "max_length": max_length,
        "precision": precision,
        "limit": settings.limit,
        **{name: adapter.counts[name] for name in ("requests", "cut", "shortened", "tokens", "unknown")},
        "left_out": {
            task: [{"document": number, "why": why} for number, why in sorted(documents.items())]
            for task, documents in adapter.unscored.items()
        },
        "tasks": {name: describe_task(name, found) for name in found["results"]},
    }


def _refuse_nothing(tasks: Iterable[str], found: dict[str, Any], unscored: dict[str, dict[int, str]]) -> None:
    """Raise DataError where no document of any task could be scored."""
    if any(found["n-samples"][task]["effective"] for task in tasks):
        return
    task, documents = next(iter(unscored.items()))
    number, why = min(documents.items())
    raise DataError(f"task {task!r}: no document can be scored: of document {number} {why}; leave the task out")


def describe_task(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Say what the library found of a task, or a group of tasks, in fields of ours."""
    numbers = found["results"][name]
    samples = found["n-samples"].get(name, {})
    metrics = []
    for key, value in numbers.items():
        metric, comma, by = key.partition(",")
        if not comma or metric.endswith("_stderr"):
            continue
        error = numbers.get(f"{metric}_stderr,{by}")
        metrics.append(
            {
                "metric": metric,
                "filter": by,
                "value": float(value),
                "standard_error": float(error) if isinstance(error, int | float) else None,
                "higher_is_better": found["higher_is_better"].get(name, {}).get(metric),
            }
        )
    return {
        "version": str(found["versions"].get(name)),
        "shots": found["n-shot"].get(name),
        "documents": samples.get("effective", numbers.get("sample_len")),
        "documents_in_task": samples.get("original"),
        "metrics": metrics,
    }


def refuse_missing_library() -> None:
    """Raise MissingExtraError where lm-evaluation-harness is not installed."""
    with extra("evaluation"):
        importlib.import_module(LIBRARY)


@contextlib.contextmanager
def _made(adapter: Any) -> Iterator[None]:
    """Turn what goes wrong before the model sees a request into one line: a task's texts could not be made."""
    try:
        yield
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        if adapter.counts["requests"]:
            raise
        raise DataError(
            f"the tasks' questions cannot be made ({type(error).__name__}: {error}); see that their data has the "
            f"fields that their YAML names, and at least as many examples as {setting('num_fewshot')}"
        ) from error


def _set_shots(tasks: Iterable[Any], num_fewshot: int | None) -> None:
    """Set the number of examples before each question, and what draws them, as the library's `simple_evaluate` does.

    That function is not called, for besides it asks git and PyTorch about themselves.
    """
    from lm_eval.defaults import DEFAULT_OTHER_SEED

    for task in tasks:
        own = task.get_config("num_fewshot")
        # A task that says 0 itself means it.
        task.set_config("num_fewshot", num_fewshot if num_fewshot is not None and own != 0 else own or 0)
        task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)


@contextlib.contextmanager
def _seeds() -> Iterator[None]:
    """Let what tasks draw be what they draw in the library's own command, and leave the generators as they were."""
    from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED

    before = random.getstate(), np.random.get_state()
    random.seed(DEFAULT_RANDOM_SEED)
    np.random.seed(DEFAULT_OTHER_SEED)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


@contextlib.contextmanager
def _quiet_library() -> Iterator[None]:
    """Keep the library to itself: no bars but ours, no processes of its own beside JAX's threads."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is imported
    os.environ.setdefault("DISABLE_MULTIPROC", "1")  # it would fork to resample standard errors
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logger = logging.getLogger(LIBRARY)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
