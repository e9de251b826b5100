"""What of a run may be published, apart from its folder: the model, its settings, and what is promised of it.

Only what is accounted is written: the parameters of a checkpoint that the ledger names as released, and what was fixed
before the first round. Numbers that were counted or measured on the way stay in the run's folder.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import jax
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedlm.fl_core.atomic_files import refuse_filled, whole_folder
from fedlm.fl_core.errors import CheckpointError, ConfigurationError
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_down, rounded_up
from fedlm.fl_core.privacy.origins.ancestry import (
    NOT_PRIVATE,
    settings_in,
)
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.privacy.origins.vocabulary_origin import (
    TOKENIZER_FILE,
    VocabularyOrigin,
    tokenizer_file,
)
from fedlm.fl_core.privacy.promise.counts.counts import Counts
from fedlm.fl_core.runs.capabilities.recorded import PATHS, released_files, whole_parameters
from fedlm.fl_core.runs.files.checkpoints import parameters_digest
from fedlm.fl_core.runs.files.places import place_in
from fedlm.fl_core.runs.files.run_lock import run_lock
from fedlm.fl_core.runs.outcome import checkpoints_of, fit_parameters, ledger_in, newest_checkpoint, refuse_not_finite
from fedlm.fl_core.runs.statements.published_statement import state_release, whole_record
from fedlm.models.base import Params, parameter_name

MODEL_FILE, SETTINGS_FILE = "model.npz", "settings.json"
STATEMENT_FILE, PAGE_FILE = "statement.json", "statement.html"

_PATHS = ("data", "cache", *PATHS)


class Published(NamedTuple):
    """What was written."""

    private: bool  # whether anything is promised
    privacy: str  # what is promised, in a sentence
    files: tuple[str, ...]
    tokenizer: str  # whether the tokenizer is among them, and why


def publish(
    run: Path,
    out: Path,
    fingerprint_of: Callable[[Path], str],
    tokenizer: Path | None = None,
    *,
    uncovered_tokenizer: bool = False,
) -> Published:
    """Write what may be published of a run into a folder of its own, whole or not at all.

    Args:
      run: folder of the run.
      out: the folder to make.
      fingerprint_of: computes the fingerprint of a tokenizer's file.
      tokenizer: the tokenizer's file, or the folder of a data set that it lies in; that of the run's data where None.
      uncovered_tokenizer: publish the tokenizer although nothing is promised of it.

    Raises:
      CheckpointError: there is no checkpoint that was released.
      ConfigurationError: there is something at `out`, or the tokenizer is another.
    """
    refuse_filled(out)
    with held_release(run) as held:
        about, params, ledger = held.about, held.params, ledger_in(run)
        stated = state_release(about, ledger)
    beside = released_files(run, about)
    found, origin = _tokenizer(about, "" if ledger is None else ledger.plan.unit, tokenizer, fingerprint_of)
    why_tokenizer = _about_tokenizer(found, origin, uncovered_tokenizer)
    with_tokenizer = found is not None and (origin.covered or uncovered_tokenizer)
    of_model = {"model": settings_in(about).get("model"), "parameters_sha256": parameters_digest(params)}
    record = whole_record(stated, of_model, origin.as_json() | {"tokenizer": why_tokenizer})
    with whole_folder(out) as made:
        _write(made, record, params, about)
        for name, text in beside.items():
            (made / name).write_text(text, encoding="utf-8")
        if with_tokenizer and found is not None:
            shutil.copyfile(found, made / TOKENIZER_FILE)
        files = tuple(sorted(path.name for path in made.iterdir()))
        for path in made.iterdir():
            path.chmod(0o644)
    return Published(record["private"], stated["privacy"], files, why_tokenizer)


def load_published(folder: Path, like: Params) -> Params:
    """Read the parameters of a folder that `publish` wrote.

    Args:
      folder: the folder.
      like: arrays, or shapes, of the model's structure: `jax.eval_shape(model.init, key)`.

    Raises:
      CheckpointError: there are none, or they are of another model.

    Example:
      >>> model = create_model("cifg_tiny", vocabulary_size=500)  # doctest: +SKIP
      >>> like = jax.eval_shape(model.init, jax.random.key(0))  # doctest: +SKIP
      >>> params = load_published(Path("published"), like)  # doctest: +SKIP
    """
    path = folder / MODEL_FILE
    try:
        with np.load(path, allow_pickle=False) as arrays:
            flat = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise CheckpointError(f"{path}: not the model of a release ({error}); give the folder of one") from error
    nested: dict[str, Any] = {}
    for name, array in flat.items():
        *outer, last = name.split("/")
        place = nested
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = array
    refuse_not_finite(nested, f"{path}: the release")
    return fit_parameters(nested, like, folder)


class Released(NamedTuple):
    """The newest parameters of a run, as arrays in dictionaries and lists."""

    about: dict[str, Any]  # what the run has written down of itself; in its ledger, where it is private
    trained: Any  # the parameters that it trained: adapters, where it trained these alone
    params: Any  # of the whole model, see `whole_parameters`
    steps: int  # or rounds, that they have seen


@contextlib.contextmanager
def held_release(run: Path) -> Iterator[Released]:
    """Read a run of any kind, and let nobody go on with it meanwhile; see `released` and `run_lock` for errors."""
    checkpoints_of(run)
    with run_lock(run):
        yield released(run)


def released(run: Path) -> Released:
    """Read the newest checkpoint of a run whose lock is held. Raises CheckpointError where there is none, or it is none
    that a private run's ledger says was released."""
    about, trained, steps = newest_checkpoint(run)
    ledger = ledger_in(run)
    if ledger is not None:
        about, named = ledger.about, [one.parameters for one in ledger.releases if one.rounds == steps]
        if not named or named[-1] != parameters_digest(trained):
            raise CheckpointError(
                f"{run}: the ledger does not name the checkpoint of {steps} rounds; it is damaged, or comes from "
                "another run"
            )
    return Released(about, trained, whole_parameters(run, about, trained), steps)


def _tokenizer(
    about: dict[str, Any], unit: str, given: Path | None, fingerprint_of: Callable[[Path], str]
) -> tuple[Path | None, VocabularyOrigin]:
    """Find the tokenizer of the run, where it is to be found, and where its words come from, as far as a unit of
    privacy is concerned."""
    path = place_in(about, "data") if given is None else given
    path = None if path is None else tokenizer_file(path)
    # What the run has written down is what its statement counts, whatever lies beside the file today.
    origin = Counts.of_run(Origins.of_record(about), about.get("training_data_sha256"), unit).vocabulary
    if path is None or not path.is_file() or fingerprint_of(path) != about["vocabulary"]:
        if given is not None:
            raise ConfigurationError(f"{given}: is not the tokenizer of the run; give its JSON file, or its data set")
        return None, origin
    return path, origin


def _about_tokenizer(found: Path | None, origin: VocabularyOrigin, anyhow: bool) -> str:
    if found is None:
        return "not published: its file was not found"
    if origin.covered:
        return "published"
    if anyhow:
        return "published at the operator's word, although nothing is promised of it"
    return "not published: nothing is promised of it"


def _write(folder: Path, record: dict[str, Any], params: Any, about: dict[str, Any]) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    with (folder / MODEL_FILE).open("wb") as file:
        arrays: dict[str, Any] = {parameter_name(path, "/"): np.asarray(leaf) for path, leaf in leaves}
        np.savez(file, **arrays)
    settings = {name: value for name, value in settings_in(about).items() if name not in _PATHS}
    (folder / SETTINGS_FILE).write_text(json_text(settings, indent=2) + "\n", encoding="utf-8")
    (folder / STATEMENT_FILE).write_text(json_text(record, indent=2) + "\n", encoding="utf-8")
    (folder / PAGE_FILE).write_text(_page(record), encoding="utf-8")


def _page(record: dict[str, Any]) -> str:
    loader = FileSystemLoader(Path(__file__).parent)
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    pages.filters |= {"rounded_up": rounded_up, "rounded_down": rounded_down}
    return pages.get_template("statement.html").render(record=record, not_private=NOT_PRIVATE)
