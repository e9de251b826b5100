"""Every named model: one line here adds one."""

import dataclasses
import difflib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fedlm.models.arguments import StrPath, checked_arguments
from fedlm.models.base import Model
from fedlm.models.bert import BertConfig, bert
from fedlm.models.cifg import (
    CifgConfig,
    cifg,
    cifg_layer_norm,
    cifg_rms_norm,
    cifg_unit_rms,
    si_cifg,
    si_cifg_published,
    si_cifg_unit_rms,
)
from fedlm.models.errors import ConfigurationError, setting
from fedlm.models.gemma import gemma, vault_gemma
from fedlm.models.imported_names import UnknownNameError, import_named, is_imported_name
from fedlm.models.model_files import read_model_file
from fedlm.models.pickling import made_by
from fedlm.models.reattention import (
    DpFormerConfig,
    ParameterErrors,
    ReattentionConfig,
    dpformer,
    reattention_transformer,
    si_reattention_transformer,
)
from fedlm.models.recurrent_recommenders import RecurrentRecommenderConfig, gru4rec, lstm4rec
from fedlm.models.sasrec import SasRecConfig, sasrec
from fedlm.models.special_tokens import OWN, SpecialTokens
from fedlm.models.transformer import (
    TransformerConfig,
    si_transformer,
    si_transformer_rms_norm,
    transformer,
    transformer_rms_norm,
)

DESCRIPTION = ".json"
"""With which the name of a model ends that is the path of its description."""
_CIFG_6M = CifgConfig(vocabulary_size=30_000, embedding=96, hidden=670, tied=False)
_CIFG_9M = CifgConfig(embedding=512, hidden=2048)
_CIFG_19M = CifgConfig(embedding=1024, hidden=2048)
_CIFG_4M = CifgConfig(embedding=320, hidden=1280)
_CIFG_1M = CifgConfig(embedding=128, hidden=512)
_CIFG_TINY = CifgConfig(embedding=64, hidden=256)
_TRANSFORMER_21M = TransformerConfig(layers=6, heads=8, embedding=512, mlp=2048)
_TRANSFORMER_11M = TransformerConfig(layers=3, heads=8, embedding=512, mlp=2048)
_TRANSFORMER_4M = TransformerConfig(layers=4, heads=8, embedding=256, mlp=1024)
_TRANSFORMER_1M = TransformerConfig(layers=3, heads=4, embedding=128, mlp=512)
_TRANSFORMER_TINY = TransformerConfig(layers=2, heads=4, embedding=64, mlp=256)
_RECURRENT_TINY = RecurrentRecommenderConfig(embedding=16, hidden=32)
_RECURRENT = RecurrentRecommenderConfig()
_RECURRENT_UNTIED = RecurrentRecommenderConfig(tied=False)
_SASREC_TINY = SasRecConfig(layers=1, embedding=16, mlp=64)


def _reattention(sizes: TransformerConfig) -> ReattentionConfig:
    return ReattentionConfig(**{field.name: getattr(sizes, field.name) for field in dataclasses.fields(sizes)})


_SHAPE = re.compile(r"transformer_([1-9]\d{0,3})x([1-9]\d{0,5})")
_HEAD_SIZE = 32  # of the heads of a Transformer that is named by its shape


def _bert(layers: int, embedding: int) -> BertConfig:
    """Size a BERT: heads of 64, feed-forward layers of four times the width.

    Tiny to Medium are those of Turc et al. 2019 (arXiv 1908.08962), Base and Large those of Devlin et al. 2019. Mega is
    that of McKenna et al. 2025 (arXiv 2501.18914, table 1) on DP training; they count 778 M parameters where one tied
    table gives 730 M, and give Small four heads.
    """
    return BertConfig(layers=layers, heads=embedding // 64, embedding=embedding, mlp=4 * embedding)


class ModelEntry(NamedTuple):
    """How to build a named model.

    Attributes:
      build: maps (name, config) to the model.
      config: a frozen dataclass of sizes; its field `vocabulary_size` is set to the data's when building.

    Example:
      >>> ModelEntry(cifg, CifgConfig(embedding=16, hidden=32)).config.hidden
      32
    """

    build: Callable[[str, Any], Model]
    config: Any


MODELS: dict[str, ModelEntry] = {
    "cifg_tiny": ModelEntry(cifg, _CIFG_TINY),
    "si_cifg_tiny": ModelEntry(si_cifg, _CIFG_TINY),
    "transformer_tiny": ModelEntry(transformer, _TRANSFORMER_TINY),
    "si_transformer_tiny": ModelEntry(si_transformer, _TRANSFORMER_TINY),
    "reattention_transformer_tiny": ModelEntry(reattention_transformer, _reattention(_TRANSFORMER_TINY)),
    "si_reattention_transformer_tiny": ModelEntry(si_reattention_transformer, _reattention(_TRANSFORMER_TINY)),
    "cifg_1m": ModelEntry(cifg, _CIFG_1M),
    "si_cifg_1m": ModelEntry(si_cifg, _CIFG_1M),
    "transformer_1m": ModelEntry(transformer, _TRANSFORMER_1M),
    "si_transformer_1m": ModelEntry(si_transformer, _TRANSFORMER_1M),
    "reattention_transformer_1m": ModelEntry(reattention_transformer, _reattention(_TRANSFORMER_1M)),
    "si_reattention_transformer_1m": ModelEntry(si_reattention_transformer, _reattention(_TRANSFORMER_1M)),
    "cifg_4m": ModelEntry(cifg, _CIFG_4M),
    "si_cifg_4m": ModelEntry(si_cifg, _CIFG_4M),
    "transformer_4m": ModelEntry(transformer, _TRANSFORMER_4M),
    "si_transformer_4m": ModelEntry(si_transformer, _TRANSFORMER_4M),
    "cifg_6m": ModelEntry(cifg, _CIFG_6M),
    "si_cifg_6m": ModelEntry(si_cifg, _CIFG_6M),
    "cifg_9m": ModelEntry(cifg, _CIFG_9M),
    "si_cifg_9m": ModelEntry(si_cifg, _CIFG_9M),
    "cifg_19m": ModelEntry(cifg, _CIFG_19M),
    "si_cifg_19m": ModelEntry(si_cifg, _CIFG_19M),
    "si_cifg_published_tiny": ModelEntry(si_cifg_published, _CIFG_TINY),
    "si_cifg_published_1m": ModelEntry(si_cifg_published, _CIFG_1M),
    "si_cifg_published_4m": ModelEntry(si_cifg_published, _CIFG_4M),
    "si_cifg_published_19m": ModelEntry(si_cifg_published, _CIFG_19M),
    "si_cifg_unit_rms_tiny": ModelEntry(si_cifg_unit_rms, _CIFG_TINY),
    "si_cifg_unit_rms_1m": ModelEntry(si_cifg_unit_rms, _CIFG_1M),
    "si_cifg_unit_rms_4m": ModelEntry(si_cifg_unit_rms, _CIFG_4M),
    "cifg_rms_norm_tiny": ModelEntry(cifg_rms_norm, _CIFG_TINY),
    "cifg_rms_norm_1m": ModelEntry(cifg_rms_norm, _CIFG_1M),
    "cifg_rms_norm_4m": ModelEntry(cifg_rms_norm, _CIFG_4M),
    "cifg_unit_rms_tiny": ModelEntry(cifg_unit_rms, _CIFG_TINY),
    "cifg_unit_rms_1m": ModelEntry(cifg_unit_rms, _CIFG_1M),
    "cifg_unit_rms_4m": ModelEntry(cifg_unit_rms, _CIFG_4M),
    "cifg_layer_norm_tiny": ModelEntry(cifg_layer_norm, _CIFG_TINY),
    "cifg_layer_norm_1m": ModelEntry(cifg_layer_norm, _CIFG_1M),
    "cifg_layer_norm_4m": ModelEntry(cifg_layer_norm, _CIFG_4M),
    "transformer_rms_norm_tiny": ModelEntry(transformer_rms_norm, _TRANSFORMER_TINY),
    "transformer_rms_norm_1m": ModelEntry(transformer_rms_norm, _TRANSFORMER_1M),
    "transformer_rms_norm_4m": ModelEntry(transformer_rms_norm, _TRANSFORMER_4M),
    "si_transformer_rms_norm_tiny": ModelEntry(si_transformer_rms_norm, _TRANSFORMER_TINY),
    "si_transformer_rms_norm_1m": ModelEntry(si_transformer_rms_norm, _TRANSFORMER_1M),
    "si_transformer_rms_norm_4m": ModelEntry(si_transformer_rms_norm, _TRANSFORMER_4M),
    "transformer_11m": ModelEntry(transformer, _TRANSFORMER_11M),
    "si_transformer_11m": ModelEntry(si_transformer, _TRANSFORMER_11M),
    "reattention_transformer_11m": ModelEntry(reattention_transformer, _reattention(_TRANSFORMER_11M)),
    "si_reattention_transformer_11m": ModelEntry(si_reattention_transformer, _reattention(_TRANSFORMER_11M)),
    "transformer_21m": ModelEntry(transformer, _TRANSFORMER_21M),
    "si_transformer_21m": ModelEntry(si_transformer, _TRANSFORMER_21M),
    "reattention_transformer_21m": ModelEntry(reattention_transformer, _reattention(_TRANSFORMER_21M)),
    "si_reattention_transformer_21m": ModelEntry(si_reattention_transformer, _reattention(_TRANSFORMER_21M)),
    "bert_tiny": ModelEntry(bert, _bert(layers=2, embedding=128)),
    "bert_mini": ModelEntry(bert, _bert(layers=4, embedding=256)),
    "bert_small": ModelEntry(bert, _bert(layers=4, embedding=512)),
    "bert_medium": ModelEntry(bert, _bert(layers=8, embedding=512)),
    "bert_base": ModelEntry(bert, _bert(layers=12, embedding=768)),
    "bert_large": ModelEntry(bert, _bert(layers=24, embedding=1024)),
    "bert_mega": ModelEntry(bert, _bert(layers=24, embedding=1536)),
    "vaultgemma_1m": ModelEntry(gemma, vault_gemma(4096, layers=4, heads=4, head_size=32, embedding=128, mlp=512)),
    "vaultgemma_10m": ModelEntry(gemma, vault_gemma(8192, layers=8, heads=4, head_size=64, embedding=256, mlp=1024)),
    "vaultgemma_20m": ModelEntry(gemma, vault_gemma(16_384, layers=8, heads=4, head_size=64, embedding=384, mlp=1152)),
    "vaultgemma_100m": ModelEntry(
        gemma, vault_gemma(32_768, layers=13, heads=4, head_size=128, embedding=640, mlp=2560)
    ),
    # The sizes of the released checkpoint, which are not those of its report's table 1.
    "vaultgemma_1b": ModelEntry(
        gemma, vault_gemma(256_000, layers=26, heads=4, head_size=256, embedding=1152, mlp=6912)
    ),
    "gru4rec_tiny": ModelEntry(gru4rec, _RECURRENT_TINY),
    "gru4rec": ModelEntry(gru4rec, _RECURRENT),
    "gru4rec_untied": ModelEntry(gru4rec, _RECURRENT_UNTIED),
    "lstm4rec_tiny": ModelEntry(lstm4rec, _RECURRENT_TINY),
    "lstm4rec": ModelEntry(lstm4rec, _RECURRENT),
    "lstm4rec_untied": ModelEntry(lstm4rec, _RECURRENT_UNTIED),
    "sasrec_tiny": ModelEntry(sasrec, _SASREC_TINY),
    "sasrec": ModelEntry(sasrec, SasRecConfig()),
    "sasrec_untied": ModelEntry(sasrec, SasRecConfig(tied=False)),
    # As long as it was published for MovieLens.
    "sasrec_200": ModelEntry(sasrec, SasRecConfig(max_length=200)),
    "sasrec_200_untied": ModelEntry(sasrec, SasRecConfig(max_length=200, tied=False)),
    "dpformer_tiny": ModelEntry(dpformer, DpFormerConfig(layers=1, embedding=16, mlp=64)),
    "dpformer": ModelEntry(dpformer, DpFormerConfig()),
    "dpformer_200": ModelEntry(dpformer, DpFormerConfig(max_length=200)),
}
"""The named models: how to build each, and of which size.

Example:
  >>> MODELS["cifg_tiny"].config.embedding
  64
"""


class UnknownModelError(UnknownNameError):
    """No model has the name that was asked for."""


@checked_arguments
def create_model(
    name: StrPath,
    vocabulary_size: int | None = None,
    special_tokens: SpecialTokens | None = None,
    parameter_errors: ParameterErrors | None = None,
) -> Model:
    """Build a model by name.

    Args:
      name: a key of `MODELS`; `transformer_LAYERSxWIDTH`, a Transformer of that shape with heads of 32 and feed-forward
        layers of four times the width; the path of a model's description (`fedlm.models.model_files`), which ends in
        `.json`, or `module:entry` for a `ModelEntry` of your own in a module that Python finds.
      vocabulary_size: number of token ids of the data; the configuration's own where None.
      special_tokens: those of the data's vocabulary; the configuration's own where None.
      parameter_errors: the noise that a model with re-attention corrects for; none where None.

    Raises:
      UnknownModelError: there is no such model; the message names the closest ones.
      ConfigurationError: the description cannot be read, or a model of your own does not know these special tokens, or
        the model has no re-attention, or another vocabulary than the errors.

    Example:
      >>> create_model("transformer_tiny", vocabulary_size=100).vocabulary_size
      100
      >>> create_model("transformer_tinny")
      Traceback (most recent call last):
      fedlm.models.registry.UnknownModelError: unknown model 'transformer_tinny'; did you mean transformer_tiny...
    """
    name = os.fspath(name)
    entry = find_entry(name)
    changed: dict[str, Any] = {}
    config = entry.config
    if vocabulary_size is not None:
        if vocabulary_size < 1:
            raise ConfigurationError(f"{setting('vocabulary_size')} is {vocabulary_size}, but must be at least 1")
        changed["vocabulary_size"] = vocabulary_size
    if parameter_errors is not None:
        if not has_reattention(name):
            raise ConfigurationError(f"model {name!r} has no re-attention, and takes no errors of parameters")
        changed[_ERRORS] = parameter_errors
    if changed:
        config = dataclasses.replace(config, **changed)
    return made_by(entry.build, name, with_special_tokens(name, config, special_tokens))


_ERRORS = "parameter_errors"


def has_reattention(name: str) -> bool:
    """Say whether a model corrects its attention for the noise that is in its parameters; see `create_model`."""
    return hasattr(find_entry(name).config, _ERRORS)


def with_special_tokens(name: str, config: Any, special_tokens: SpecialTokens | None) -> Any:
    """Set a configuration's special tokens, None for what it has; where it has no such field, they must be our own.

    Raises:
      ConfigurationError: it has no such field, and they are others.
    """
    if hasattr(config, "special_tokens"):
        return config if special_tokens is None else dataclasses.replace(config, special_tokens=special_tokens)
    if special_tokens not in (None, OWN):
        raise ConfigurationError(
            f"model {name!r}: the vocabulary's special tokens are {', '.join(special_tokens.names)}, and this model's "
            "configuration has no field special_tokens to be told so; add one, or take data with a vocabulary of ours"
        )
    return config


def find_entry(name: str) -> ModelEntry:
    """Find how a model is built, by its name; see `create_model`."""
    if name.endswith(DESCRIPTION):
        return ModelEntry(*read_model_file(Path(name)))
    return _imported_entry(name) if is_imported_name(name) else _registered_entry(name)


def same_model(one: str, other: str) -> bool:
    """Say whether two names are of models that differ in their vocabularies at most."""
    if one == other:
        return True
    try:
        entries = [find_entry(name) for name in (one, other)]
    except ConfigurationError:
        return False
    (build, config), (other_build, other_config) = entries
    of_vocabulary = {
        name: getattr(other_config, name)
        for name in ("vocabulary_size", "special_tokens")
        if hasattr(config, name) and hasattr(other_config, name)
    }
    return (
        build is other_build
        and type(config) is type(other_config)
        and dataclasses.replace(config, **of_vocabulary) == other_config
    )


def _registered_entry(name: str) -> ModelEntry:
    if shape := _SHAPE.fullmatch(name):
        return _shaped_entry(name, *map(int, shape.groups()))
    if name not in MODELS:
        close = ", ".join(difflib.get_close_matches(name, MODELS))
        raise UnknownModelError(
            f"unknown model {name!r}{f'; did you mean {close}?' if close else ';'} `fedlm models` lists all"
        )
    return MODELS[name]


def _shaped_entry(name: str, layers: int, width: int) -> ModelEntry:
    if width % _HEAD_SIZE:
        raise UnknownModelError(
            f"model {name!r}: its width is {width}, but must be a multiple of {_HEAD_SIZE}, the size of a head"
        )
    sizes = TransformerConfig(layers=layers, heads=width // _HEAD_SIZE, embedding=width, mlp=4 * width)
    return ModelEntry(transformer, sizes)


def _imported_entry(name: str) -> ModelEntry:
    return import_named(name, "model", "a ModelEntry", lambda found: isinstance(found, ModelEntry), UnknownModelError)


def standard_twin(name: str) -> str | None:
    """Name the standard architecture that a scale-invariant model, `si_NAME` or `si_NAME_published`, is compared with,
    if there is one."""
    twin = name.removeprefix("si_").replace("_published_", "_")
    return twin if twin != name and twin in MODELS else None
