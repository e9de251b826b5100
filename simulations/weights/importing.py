"""A published model's folder made into a run, which others begin with, are evaluated, and are exported."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedlm.fl_core.atomic_files import refuse_filled, whole_folder
from fedlm.fl_core.errors import DataError
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.privacy.origins.ancestry import CLAIM_FIELD, IMPORTED, NOT_PRIVATE, OF_A_PUBLISHER
from fedlm.fl_core.privacy.origins.publisher_claims import PublisherClaim
from fedlm.fl_core.privacy.origins.vocabulary_origin import ORIGIN_FIELD, TOKENIZER_FILE, VocabularyOrigin
from fedlm.fl_core.runs.files.checkpoints import Checkpoints, parameters_digest
from fedlm.fl_core.runs.identity import SUMMARY_FILE
from fedlm.fl_core.runs.outcome import refuse_not_finite
from fedlm.models.base import Params, parameter_count
from fedlm.models.hugging_face.bert import check_tied
from fedlm.models.hugging_face.named_states import StateError, check_shapes, from_state, own_names
from fedlm.models.model_files import describe_model
from fedlm.models.registry import MODELS, ModelEntry
from fedlm.simulations.data.vocabulary.adopted_tokenizers import AdoptedTokenizer
from fedlm.simulations.weights.layouts import CONFIG_FILE, Layout, read_layout
from fedlm.simulations.weights.tensor_files import Tensor, open_tensors

MODEL_FILE, ORIGINAL = "model.json", "original"
"""In the run's folder: the model's description, our tokenizer, and what lay beside the weights."""
_KEPT = (
    *(CONFIG_FILE, TOKENIZER_FILE, "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"),
    "chat_template.jinja",
)
_STEP = 1
"""A checkpoint has a number of steps, and it is not 0; how many the publisher took is not known."""
_LENGTH = 128
"""Tokens of the sequences that it is evaluated on, at most, as of those that are trained on where nothing is said."""
_OLD_ENDINGS = {"gamma": "weight", "beta": "bias"}
"""Of layer norms, as the first BERTs were saved."""


class ImportedModel(NamedTuple):
    """What was read."""

    model: str  # the name, or path, that `--model` takes
    parameters: int
    vocabulary_size: int  # of the data that it trains on, which a masked model has one id more than
    dtypes: dict[str, int]  # how many tensors are of each type


def import_model(folder: Path, out: Path, claim: PublisherClaim | None = None) -> ImportedModel:
    """Make a run of a model's folder: config.json, safetensors and tokenizer.json; whole or not at all.

    Args:
      folder: as `transformers` or `fedlm model export` wrote it.
      out: the run's folder to make.
      claim: what the publisher promises of the weights, for the statements of runs that begin with them; None where
        nothing is known.

    Raises:
      DataError: a file is missing, cut off, or does not fit the others.
      ConfigurationError: there is something at `out`.
    """
    refuse_filled(out)
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; give that of a model, with config.json and safetensors")
    layout = read_layout(folder)
    tensors = layout.unpack(open_tensors(folder))
    # Before the tokenizer, which is made as large as the table is said to be.
    _check(folder, layout, tensors)
    adopted = layout.adopt(folder / TOKENIZER_FILE)
    entry = layout.entry_with(adopted)
    params, dtypes = _read(folder, layout, tensors, adopted)
    refuse_not_finite(params, f"{folder}: the model")
    size = adopted.tokenizer.vocabulary_size
    name = _name(entry, out)
    length = min(getattr(entry.config, "max_length", _LENGTH), _LENGTH)
    imported = {"model": name, "from": str(folder.absolute()), "precision": "auto", "seed": 0, "length": length}
    about = {
        IMPORTED: imported,
        "dtypes": dtypes,
        "vocabulary": adopted.tokenizer.fingerprint,
        "training_data_sha256": None,
        ORIGIN_FIELD: VocabularyOrigin("given").as_json(),
        CLAIM_FIELD: None if claim is None else claim.as_json(),
    }
    with whole_folder(out) as made:
        _write(made, entry, params, about, adopted=adopted, folder=folder)
    count = parameter_count(entry.build(name, entry.config))
    return ImportedModel(name, count, size, dict(Counter(dtypes.values())))


def _check(folder: Path, layout: Layout, tensors: dict[str, Tensor]) -> None:
    """Raise DataError unless the tensors are a model's, by names and shapes. Old names get their new ones beside
    them."""
    for name in list(tensors):
        stem, _, ending = name.rpartition(".")
        if ending in _OLD_ENDINGS:
            tensors.setdefault(f"{stem}.{_OLD_ENDINGS[ending]}", tensors[name])
    try:
        missing = [name for name in jax.tree_util.tree_leaves(layout.names) if name not in tensors]
        if missing:
            raise StateError(f"has no tensor {', '.join(missing[:3])}; expected the parameters of {layout.what}")
        check_shapes(tensors, layout.names, layout.like(), layout.own)
        check_tied(tensors, layout.tied)
    except StateError as error:
        raise DataError(
            f"{folder}: {error}; its weights and its config.json are of two models, or not whole"
        ) from error
    used = {*jax.tree_util.tree_leaves(layout.names), *layout.tied}
    used |= {f"{name.rpartition('.')[0]}.{old}" for name in used for old in _OLD_ENDINGS}
    further = [name for name in tensors if name.startswith(layout.all_used) and name not in used]
    if further:
        raise DataError(
            f"{folder}: has the tensor {further[0]}, which {layout.what} with this config.json has no use for; the two "
            "are of different models"
        )


def _read(
    folder: Path, layout: Layout, tensors: dict[str, Tensor], adopted: AdoptedTokenizer
) -> tuple[Params, dict[str, str]]:
    """Read the parameters, with the rows of the vocabulary in our order, and say of which type each was."""
    params = from_state(tensors, layout.names, layout.what, layout.own)
    for name, array in zip(*map(jax.tree_util.tree_leaves, (layout.names, params)), strict=True):
        if not np.isfinite(array).all():
            raise DataError(
                f"{folder}: tensor {name} has {np.size(array) - np.isfinite(array).sum():,} values that are no finite "
                "numbers, expected none; fetch the model again, or take an earlier checkpoint of its training"
            )
    own = own_names(layout.names)
    dtypes = jax.tree_util.tree_map(lambda own, theirs: (own, tensors[theirs].dtype), own, layout.names)
    if adopted.rows is not None:
        params = reorder_rows(params, adopted.rows)
    return params, dict(jax.tree_util.tree_leaves(dtypes, is_leaf=lambda leaf: isinstance(leaf, tuple)))


def reorder_rows(params: Params, rows: np.ndarray) -> Params:
    """Take the rows of a model's vocabulary in another order, int64 [rows]."""
    tables = {name: {"table": params[name]["table"][rows]} for name in ("embedding", "output") if name in params}
    return params | tables | ({"output_bias": params["output_bias"][rows]} if "output_bias" in params else {})


def _name(entry: ModelEntry, out: Path) -> str:
    """Find the named model that this one is, or else name its description."""
    for name, (build, config) in MODELS.items():
        if build is entry.build and config == entry.config:
            return name
    return str(out / MODEL_FILE)


def _write(
    made: Path, entry: ModelEntry, params: Params, about: dict[str, Any], *, adopted: AdoptedTokenizer, folder: Path
) -> None:
    adopted.tokenizer.save(made / TOKENIZER_FILE)
    (made / MODEL_FILE).write_text(json_text(describe_model(*entry), indent=2) + "\n", encoding="utf-8")
    (made / ORIGINAL).mkdir()
    for name in _KEPT:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, made / ORIGINAL / name)
    with Checkpoints(made / "checkpoints") as checkpoints:
        checkpoints.save(_STEP, {"params": params}, about)
    summary = {
        "status": "finished",
        "steps": 0,
        "rounds": 0,
        "privacy": f"{NOT_PRIVATE}: {OF_A_PUBLISHER}",
        "privacy_guarantee": None,
        "not_private_because": [OF_A_PUBLISHER],
        "parameters_sha256": parameters_digest(params),
        "vocabulary_sha256": about["vocabulary"],
        CLAIM_FIELD: about[CLAIM_FIELD],
        IMPORTED: about[IMPORTED],
    }
    (made / SUMMARY_FILE).write_text(json_text(summary, indent=2) + "\n", encoding="utf-8")
