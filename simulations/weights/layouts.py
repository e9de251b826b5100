"""How the weights of a model lie in a folder: what config.json says, and which tensor is which parameter.

Hugging Face's, for the model types of `MODEL_TYPES`, and our own, for every architecture of
`fedlm.models.model_files.ARCHITECTURES`: config.json has `"format": "fedlm-model"`, the description of the model and
the ids of its special tokens, and each tensor is named by its place among the parameters, `blocks.0.query.kernel`, a
kernel being [inputs, outputs].
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedlm.fl_core.errors import ConfigurationError, DataError, setting
from fedlm.models import hugging_face, hugging_face_gemma
from fedlm.models.base import Model, Params
from fedlm.models.bert import bert
from fedlm.models.gemma import gemma
from fedlm.models.model_files import describe_model, read_description
from fedlm.models.named_states import own_names
from fedlm.models.registry import ModelEntry
from fedlm.models.special_tokens import SpecialTokens

CONFIG_FILE = "config.json"
FORMAT, FORMAT_VERSION = "fedlm-model", 1


class Layout(NamedTuple):
    """A model and where its parameters lie."""

    entry: ModelEntry
    names: Params  # of tensors, arranged as the parameters are
    tied: Mapping[str, str]  # tensors that may be there as well, and what they equal
    what: str  # whose parameters, for messages
    own: bool  # whether kernels are [inputs, outputs]
    all_used: str  # how names begin of which there must be no others

    @property
    def model(self) -> Model:
        """The model."""
        return self.entry.build("imported", self.entry.config)

    @property
    def rows(self) -> int:
        """Ids that the model has."""
        return self.model.vocabulary_size

    def like(self) -> Params:
        """Give the shapes of the parameters."""
        return jax.eval_shape(self.model.init, jax.random.key(0))


def _of_bert(config: Any) -> Layout:
    names = hugging_face.names_in_hugging_face(config.layers)
    return Layout(ModelEntry(bert, config), names, hugging_face.TIED, "a BertForMaskedLM", False, "bert.encoder.layer.")


def _of_gemma(config: Any) -> Layout:
    names, tied = (
        hugging_face_gemma.names_in_hugging_face(config),
        {hugging_face_gemma.HEAD: hugging_face_gemma.EMBEDDING},
    )
    return Layout(ModelEntry(gemma, config), names, tied, "a Gemma decoder", False, "model.layers.")


class _Family(NamedTuple):
    read: Callable[[Mapping[str, Any]], Any]  # from config.json to our configuration
    write: Callable[[Any], dict[str, Any]]
    layout: Callable[[Any], Layout]


_BERT = _Family(hugging_face.config_from_hugging_face, hugging_face.config_to_hugging_face, _of_bert)
_GEMMA = _Family(hugging_face_gemma.config_from_hugging_face, hugging_face_gemma.config_to_hugging_face, _of_gemma)
_BY_BUILD = {bert: _BERT, gemma: _GEMMA}
MODEL_TYPES = {"bert": _BERT} | dict.fromkeys(hugging_face_gemma.FAMILIES, _GEMMA)
"""By the `model_type` of config.json."""


def read_layout(folder: Path) -> Layout:
    """Read the config.json of a folder.

    Raises:
      DataError: it is missing or damaged, of an architecture that is unknown, or says what our model has not got.
    """
    path = folder / CONFIG_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file; give the folder of a model, with its config.json") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read ({error}), expected a model's configuration in JSON") from error
    if not isinstance(document, dict):
        raise DataError(f"{path}: found a {type(document).__name__}, expected a model's configuration, an object")
    try:
        if document.get("format") == FORMAT:
            if document.get("format_version") != FORMAT_VERSION:
                found = document.get("format_version")
                raise ConfigurationError(f"format_version is {found!r}, but this release reads {FORMAT_VERSION}")
            return own_layout(ModelEntry(*read_description(document.get("model"))))
        family = MODEL_TYPES.get(str(document.get("model_type")))
        if family is None:
            raise ConfigurationError(
                f"model_type is {document.get('model_type')!r}, expected one of {', '.join(MODEL_TYPES)}, or a model "
                "that `fedlm model export` wrote"
            )
        return family.layout(family.read(document))
    except ConfigurationError as error:
        raise DataError(f"{path}: {error}") from error


def own_layout(entry: ModelEntry) -> Layout:
    """Lay a model out as our own format does."""
    like = jax.eval_shape(entry.build("own", entry.config).init, jax.random.key(0))
    return Layout(entry, own_names(like), {}, f"a {describe_model(*entry)['architecture']}", True, "")


def own_config(entry: ModelEntry, special_tokens: SpecialTokens) -> dict[str, Any]:
    """Make the config.json of our own format. Raises ConfigurationError where the architecture is a user's own."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "model": describe_model(*entry),
        "special_tokens": {"pad": 0, "bos": special_tokens.bos, "eos": special_tokens.eos, "oov": 3},
    }


def hugging_face_layout(entry: ModelEntry, special_tokens: SpecialTokens) -> tuple[Layout, dict[str, Any]]:
    """Lay a model out as `transformers` does, with the config.json of it. Raises ConfigurationError where there is no
    such model."""
    family = _BY_BUILD.get(entry.build)
    if family is None:
        raise ConfigurationError(
            f"transformers has no model of this architecture; give {setting('format', 'safetensors')}, which has the "
            "layout of docs/models.md, or stablehlo"
        )
    ids = {"pad_token_id": 0, "bos_token_id": special_tokens.bos, "eos_token_id": special_tokens.eos}
    return family.layout(entry.config), family.write(entry.config) | ids
