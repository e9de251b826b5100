"""The model of a run, as other programs read it."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.atomic_files import refuse_filled, whole_folder
from fedlm.fl_core.errors import ConfigurationError, DataError, setting
from fedlm.fl_core.privacy.origins.ancestry import IMPORTED, recorded_ancestry, settings_in
from fedlm.fl_core.privacy.origins.vocabulary_origin import TOKENIZER_FILE, tokenizer_file
from fedlm.fl_core.runs.capabilities.recorded import check_exportable
from fedlm.fl_core.runs.files.places import place_in
from fedlm.fl_core.runs.outcome import fit_parameters, stated_privacy
from fedlm.fl_core.runs.statements.publishing import held_release
from fedlm.models.base import Params
from fedlm.models.hugging_face import gpt2 as gpt2
from fedlm.models.hugging_face.named_states import own_names, to_state
from fedlm.models.registry import ModelEntry, find_entry, with_special_tokens
from fedlm.simulations.data.vocabulary.adopted_tokenizers import AdoptedTokenizer
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from fedlm.simulations.weights.adapter_files import (
    StoredAdapters,
    adapter_tensors,
    no_adapters,
    stored_adapters,
    write_adapters,
)
from fedlm.simulations.weights.importing import MODEL_FILE, ORIGINAL, reorder_rows
from fedlm.simulations.weights.layouts import (
    CONFIG_FILE,
    Layout,
    hugging_face_layout,
    own_config,
    own_layout,
    read_layout,
)
from fedlm.simulations.weights.tensor_files import write_tensors

Format = Literal["huggingface", "safetensors", "peft"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
_TOKENIZER_FILES = (TOKENIZER_FILE, "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


class StoredModel(NamedTuple):
    """The model of a run of any kind, read without its data.

    Attributes:
      folder: of the run.
      about: what its newest checkpoint says of it.
      entry: how the model is built, with the size of its vocabulary and its special tokens.
      params: NumPy arrays, arranged as the model's parameters; with adapters, where the run trained these, added.
      tokenizer: of the data that it was trained on.
      privacy: what the run states of its privacy.
      adapters: what the run trained in place of the whole model; None where it trained that.
    """

    folder: Path
    about: dict[str, Any]
    entry: ModelEntry
    params: Params
    tokenizer: Tokenizer
    privacy: str
    adapters: StoredAdapters | None


class ExportedModel(NamedTuple):
    """What was written."""

    files: tuple[str, ...]
    dtypes: tuple[str, ...]  # of the tensors
    privacy: str


def read_run(run: Path, vocabulary: Path | None = None) -> StoredModel:
    """Read the model of a run's newest checkpoint; of a private run only one that its ledger says was released.

    Args:
      run: folder of a run of any kind, an imported one among them.
      vocabulary: its tokenizer: the JSON file, or the folder of a data set; None for that of the run, or of its data.

    Raises:
      CheckpointError: there is no such checkpoint, or it cannot be read.
      ConfigurationError: the tokenizer is missing, or is another.
    """
    with held_release(run) as held:
        about, privacy = held.about, stated_privacy(run)
    check_exportable(run, about)
    tokenizer = _tokenizer(run, about, vocabulary)
    name = str(place_in(about, "model"))
    if IMPORTED in about and (run / MODEL_FILE).is_file():
        name = str(run / MODEL_FILE)
    build, config = find_entry(name)
    config = dataclasses.replace(config, vocabulary_size=tokenizer.vocabulary_size)
    entry = ModelEntry(build, with_special_tokens(name, config, tokenizer.special_tokens))
    like = jax.eval_shape(build(name, entry.config).init, jax.random.key(0))
    adapters = stored_adapters(about, held.trained)
    return StoredModel(run, about, entry, fit_parameters(held.params, like, run), tokenizer, privacy, adapters)


def tokenizer_of(run: Path, about: dict[str, Any], given: Path | None) -> Path:
    """Find the tokenizer's file of a run: that which is given, or lies in its folder or its data's; there may be
    none."""
    return tokenizer_file(given or (run if (run / TOKENIZER_FILE).is_file() else place_in(about, "data") or run))


def _tokenizer(run: Path, about: dict[str, Any], given: Path | None) -> Tokenizer:
    path = tokenizer_of(run, about, given)
    if given is None and not path.is_file():
        raise ConfigurationError(f"{run}: its tokenizer is not at {path} any more; give {setting('vocabulary')}")
    tokenizer = Tokenizer.load(path)
    if tokenizer.fingerprint != about["vocabulary"]:
        raise ConfigurationError(
            f"{path}: is not the tokenizer of {run}; give {setting('vocabulary')}, its file or its data set"
        )
    return tokenizer


def export_model(
    run: Path,
    out: Path,
    form: Format,
    *,
    dtype: Dtype = "auto",
    vocabulary: Path | None = None,
) -> ExportedModel:
    """Write the model of a run into a folder, whole or not at all.

    Args:
      run: folder of a run of any kind.
      out: the folder to make.
      form: `huggingface`, as `transformers` reads it; `safetensors`, the layout of `layouts.py`; `peft`, the adapters
        of a run that trained such, as PEFT reads them, which all other forms have added to the model.
      dtype: of the tensors. `auto` is what an imported model's were, and float32 else.
      vocabulary: see `read_run`.

    Raises:
      UserError: there is no model that can be read, or that has such a form, or there is something at `out`.
    """
    refuse_filled(out)
    stored = read_run(run, vocabulary)
    if form == "peft":
        return _export_adapters(stored, out, dtype)
    special_tokens = stored.tokenizer.special_tokens
    original = _original(stored)
    params = stored.params
    if form == "huggingface":
        layout, config = hugging_face_layout(_entry_of_theirs(stored, original), special_tokens)
        theirs = None if original is None else original.adopted.rows_of_theirs()
        if theirs is not None:
            params = reorder_rows(params, theirs)
        if original is not None and original.layout.ids is not None:
            config |= original.token_ids()
    else:
        layout, config, original = own_layout(stored.entry), own_config(stored.entry, special_tokens), None
    kinds = _dtypes(stored, dtype)
    state = to_state(params, layout.names, layout.own)
    own = to_state(own_names(params), layout.names, own=True)
    tensors = {name: _as(name, array, kinds[str(own[name])]) for name, array in state.items()}
    used = sorted({array.dtype.name for array in tensors.values()})
    if layout.own is False:
        config |= {"dtype": used[0]} if len(used) == 1 else {}
    with whole_folder(out) as made:
        (made / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        write_tensors(made, layout.pack(tensors))
        _write_tokenizer(made, stored.tokenizer, original)
        files = tuple(sorted(path.name for path in made.iterdir()))
    return ExportedModel(files, tuple(used), stored.privacy)


def _export_adapters(stored: StoredModel, out: Path, dtype: Dtype) -> ExportedModel:
    if stored.adapters is None:
        raise no_adapters(stored.folder)
    try:
        layout, _ = hugging_face_layout(_entry_of_theirs(stored, _original(stored)), stored.tokenizer.special_tokens)
    except ConfigurationError:
        layout = own_layout(stored.entry)
    if layout.pack is gpt2.pack:
        raise ConfigurationError(
            "PEFT adapts GPT-2's queries, keys and values as one matrix, but each has an adapter of its own here; give "
            f"another {setting('format')}, which adds the adapters to the model"
        )
    kind = "float32" if dtype == "auto" else dtype
    named = adapter_tensors(stored.adapters.params, layout.names)
    tensors = {name: _as(name, array, kind) for name, array in named.items()}
    base = str(settings_in(stored.about)["init_from"])
    with whole_folder(out) as made:
        write_adapters(made, stored.adapters.config, tensors, base=base, objective=layout.model.objective)
        _write_tokenizer(made, stored.tokenizer, None if layout.own else _original(stored))
        files = tuple(sorted(path.name for path in made.iterdir()))
    return ExportedModel(files, (kind,), stored.privacy)


def _dtypes(stored: StoredModel, dtype: Dtype) -> dict[str, str]:
    names = jax.tree_util.tree_leaves(own_names(stored.params))
    known = stored.about.get("dtypes") or {} if dtype == "auto" else {}
    return {name: known.get(name, "float32" if dtype == "auto" else dtype) for name in names}


def _as(name: str, array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Round a tensor. Raises ConfigurationError where a number becomes infinite."""
    import ml_dtypes  # noqa: F401 - tells NumPy of bfloat16

    with np.errstate(over="ignore"):
        rounded = np.asarray(array).astype(dtype, copy=False)
    lost = np.isfinite(array) & ~np.isfinite(rounded)
    if lost.any():
        raise ConfigurationError(
            f"{setting('dtype')} is {dtype}, in which {lost.sum():,} numbers of the tensor {name} would be infinite; "
            "give bfloat16 or float32"
        )
    return rounded


class _Original(NamedTuple):
    """What a model was published with."""

    folder: Path
    layout: Layout
    adopted: AdoptedTokenizer

    def token_ids(self) -> dict[str, Any]:
        """Find what its config.json says of special tokens."""
        document = json.loads((self.folder / CONFIG_FILE).read_text(encoding="utf-8"))
        return {name: document.get(name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}


def _original(stored: StoredModel) -> _Original | None:
    """Find what was imported, in this run or those that it began with; None where it is not there any more."""
    folders = [stored.folder, *(Path(phase.folder) for phase in reversed(recorded_ancestry(stored.about)))]
    for folder in folders:
        path = folder / ORIGINAL / TOKENIZER_FILE
        if path.is_file():
            try:
                layout = read_layout(path.parent)
                adopted = layout.adopt(path)
            except DataError:
                continue
            if adopted.tokenizer.fingerprint == stored.tokenizer.fingerprint:
                return _Original(path.parent, layout, adopted)
    return None


def _entry_of_theirs(stored: StoredModel, original: _Original | None) -> ModelEntry:
    """Give the model without the special tokens that were put beside those of its publisher."""
    build, config = stored.entry
    added = getattr(config, "never_predicted", ())
    if not added:
        return stored.entry
    if original is None:
        raise ConfigurationError(
            f"{stored.folder}: the tokenizer that its model was published with is not beside it any more, nor beside "
            f"the runs that it began with; give {setting('format', 'safetensors')}"
        )
    size = config.vocabulary_size - len(added)
    return ModelEntry(build, dataclasses.replace(config, vocabulary_size=size, never_predicted=()))


def _write_tokenizer(made: Path, tokenizer: Tokenizer, original: _Original | None) -> None:
    if original is not None:
        for name in _TOKENIZER_FILES:
            if (original.folder / name).is_file():
                shutil.copyfile(original.folder / name, made / name)
        return
    tokenizer.save(made / TOKENIZER_FILE)
    pad, *_, unknown = names = tokenizer.special_tokens.names
    ids = tokenizer.special_tokens
    record = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{"pad_token": pad, "unk_token": unknown, "bos_token": names[ids.bos], "eos_token": names[ids.eos]},
    }
    (made / "tokenizer_config.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
