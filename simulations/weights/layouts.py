"""How the weights of a model lie in a folder: what config.json says, and which tensor is which parameter.

There are two layouts: Hugging Face's, for the model types of `MODEL_TYPES`, and our own, for every architecture of
`fedlm.models.model_files.ARCHITECTURES`. In ours config.json has `"format": "fedlm-model"`, the description of the
model and the ids of its special tokens. Each tensor is named by its place among the parameters, such as
`blocks.0.query.kernel`; a kernel is [inputs, outputs].
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedlm.fl_core.errors import ConfigurationError, DataError, setting
from fedlm.models.base import Model, Params
from fedlm.models.families.bert import bert
from fedlm.models.families.published_decoder import published_decoder
from fedlm.models.hugging_face import bert as bert_names
from fedlm.models.hugging_face import gemma, gpt2, llama
from fedlm.models.hugging_face.named_states import own_names
from fedlm.models.model_files import describe_model, read_description
from fedlm.models.registry import ModelEntry
from fedlm.models.special_tokens import SpecialTokens
from fedlm.simulations.data.vocabulary.adopted_tokenizers import AdoptedTokenizer, TokenIds, adopt_tokenizer

CONFIG_FILE = "config.json"
FORMAT, FORMAT_VERSION = "fedlm-model", 1


State = Mapping[str, Any]


def _as_it_is(state: State) -> dict[str, Any]:
    return dict(state)


class Layout(NamedTuple):
    """A model and where its parameters lie."""

    entry: ModelEntry
    names: Params  # of tensors, arranged as the parameters are
    tied: Mapping[str, str]  # tensors that may be there as well, and what they equal
    what: str  # whose parameters, for messages
    own: bool  # whether kernels are [inputs, outputs]
    all_used: str  # how names begin of which there must be no others
    unpack: Callable[[State], dict[str, Any]] = _as_it_is  # from a file's tensors to those that are named
    pack: Callable[[State], dict[str, Any]] = _as_it_is
    ids: TokenIds | None = None  # None where they are ours, or Gemma's

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

    def adopt(self, tokenizer: Path) -> AdoptedTokenizer:
        """Make a tokenizer of ours of the model's tokenizer.json; DataError where that does not fit."""
        return adopt_tokenizer(tokenizer, self.rows, self.model.objective == "masked", self.ids)

    def entry_with(self, adopted: AdoptedTokenizer) -> ModelEntry:
        """Give the model that has our special tokens beside its own."""
        if self.ids is None or adopted.rows is None:
            return self.entry
        changed = {"vocabulary_size": len(adopted.rows), "never_predicted": adopted.never_predicted}
        return self.entry._replace(config=dataclasses.replace(self.entry.config, **changed))


def _of_bert(config: Any) -> Layout:
    names = bert_names.names_in_hugging_face(config.layers)
    return Layout(ModelEntry(bert, config), names, bert_names.TIED, "a BertForMaskedLM", False, "bert.encoder.layer.")


def _of_gemma(config: Any) -> Layout:
    names, tied = gemma.names_in_hugging_face(config), {gemma.HEAD: gemma.EMBEDDING}
    return Layout(ModelEntry(published_decoder, config), names, tied, "a Gemma decoder", False, "model.layers.")


def _of_llama(config: Any) -> Layout:
    names, tied = llama.names_in_hugging_face(config), {gemma.HEAD: gemma.EMBEDDING} if config.tied else {}
    entry = ModelEntry(published_decoder, config)
    return Layout(entry, names, tied, "a decoder like Llama", False, "model.layers.", llama.unpack)


def _of_gpt2(config: Any) -> Layout:
    entry, names = ModelEntry(published_decoder, config), gpt2.names_in_hugging_face(config)
    return Layout(entry, names, gpt2.TIED, "a GPT-2", False, "transformer.h.", gpt2.unpack, gpt2.pack)


class _Family(NamedTuple):
    read: Callable[[Mapping[str, Any]], Any]  # from config.json to our configuration
    write: Callable[[Any], dict[str, Any]]
    layout: Callable[[Any], Layout]
    own_ids: bool = True  # whether its vocabulary begins with PAD, BOS and EOS, and OOV


_BERT = _Family(bert_names.config_from_hugging_face, bert_names.config_to_hugging_face, _of_bert)
_GEMMA = _Family(gemma.config_from_hugging_face, gemma.config_to_hugging_face, _of_gemma)
_LLAMA = _Family(llama.config_from_hugging_face, llama.config_to_hugging_face, _of_llama, own_ids=False)
_GPT2 = _Family(gpt2.config_from_hugging_face, gpt2.config_to_hugging_face, _of_gpt2, own_ids=False)
_BY_BUILD: dict[Any, tuple[_Family, ...]] = {bert: (_BERT,), published_decoder: (_GEMMA, _LLAMA, _GPT2)}
MODEL_TYPES = {
    "bert": _BERT,
    **dict.fromkeys(gemma.FAMILIES, _GEMMA),
    **dict.fromkeys(llama.FAMILIES, _LLAMA),
    "gpt2": _GPT2,
}
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
        layout = family.layout(family.read(document))
        return layout if family.own_ids else layout._replace(ids=_token_ids(document, layout.rows))
    except ConfigurationError as error:
        raise DataError(f"{path}: {error}") from error


def _token_ids(document: Mapping[str, Any], rows: int) -> TokenIds:
    found = {}
    for name in ("bos_token_id", "eos_token_id"):
        value = document.get(name)
        value = value[0] if isinstance(value, list) and value else value
        if value is not None and (type(value) is not int or not 0 <= value < rows):
            raise ConfigurationError(f"{name} is {value!r}, expected an id below {rows}")
        found[name] = value
    if found["eos_token_id"] is None:
        raise ConfigurationError("has no eos_token_id, expected the id of the token that ends a text")
    return TokenIds(found["bos_token_id"], found["eos_token_id"])


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
    for family in _BY_BUILD.get(entry.build, ()):
        try:
            document = family.write(entry.config)
        except ConfigurationError:
            continue
        ids = {"pad_token_id": 0, "bos_token_id": special_tokens.bos, "eos_token_id": special_tokens.eos}
        return family.layout(entry.config), document | ids
    raise ConfigurationError(
        f"transformers has no model of this architecture; give {setting('format', 'safetensors')}, which has the "
        "layout of docs/models.md"
    )
