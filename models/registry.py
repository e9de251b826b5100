"""Every named model: one line here adds one."""

import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedlm.models.arguments import StrPath, checked_arguments
from fedlm.models.base import Model
from fedlm.models.errors import ConfigurationError, setting
from fedlm.models.families.bert import BertConfig, bert
from fedlm.models.families.cifg import CifgConfig, cifg
from fedlm.models.families.parameter_errors import ParameterErrors
from fedlm.models.families.published_decoder import published_decoder
from fedlm.models.families.published_decoder_config import vault_gemma
from fedlm.models.families.reattention import DpFormerConfig, ReattentionConfig, dpformer, reattention_transformer
from fedlm.models.families.recurrent_recommenders import RecurrentRecommenderConfig, gru4rec, lstm4rec
from fedlm.models.families.sasrec import SasRecConfig, sasrec
from fedlm.models.families.transformer import TransformerConfig, transformer
from fedlm.models.imported_names import UnknownNameError, import_named, is_imported_name
from fedlm.models.model_files import read_model_file
from fedlm.models.model_settings import with_settings
from fedlm.models.pickling import made_by
from fedlm.models.special_tokens import OWN, SpecialTokens

DESCRIPTION = ".json"
"""With which the name of a model ends that is the path of its description."""
_SETTING = "+"
"""What stands in a name before each setting."""
_CIFGS = {
    "cifg_tiny": CifgConfig(embedding=64, hidden=256),
    "cifg_1m": CifgConfig(embedding=128, hidden=512),
    "cifg_4m": CifgConfig(embedding=320, hidden=1280),
    "cifg_6m": CifgConfig(vocabulary_size=30_000, embedding=96, hidden=670, tied=False),
    "cifg_9m": CifgConfig(embedding=512, hidden=2048),
    "cifg_19m": CifgConfig(embedding=1024, hidden=2048),
}
_SI_CIFG = {"recurrence": "scale_invariant", "output_norm": "rms_norm"}
_TRANSFORMERS = {
    "transformer_tiny": TransformerConfig(layers=2, heads=4, embedding=64, mlp=256),
    "transformer_1m": TransformerConfig(layers=3, heads=4, embedding=128, mlp=512),
    "transformer_4m": TransformerConfig(layers=4, heads=8, embedding=256, mlp=1024),
    "transformer_11m": TransformerConfig(layers=3, heads=8, embedding=512, mlp=2048),
    "transformer_21m": TransformerConfig(layers=6, heads=8, embedding=512, mlp=2048),
}
_SI_TRANSFORMER = {"attention": "scale_invariant"}
_REATTENTION, _ERRORS = "reattention", "parameter_errors"
"""The setting that makes a Transformer one with re-attention, and its field of constants."""
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


def _twins(
    build: Callable[[str, Any], Model], sizes: Mapping[str, Any], parts: Mapping[str, Any]
) -> dict[str, ModelEntry]:
    """Make the entries of a family in all sizes, each followed by its scale-invariant twin, which has other parts."""
    entries = {}
    for name, config in sizes.items():
        entries[name] = ModelEntry(build, config)
        entries[f"si_{name}"] = ModelEntry(build, dataclasses.replace(config, **parts))
    return entries


def _vault_gemma(vocabulary_size: int, **sizes: int) -> ModelEntry:
    return ModelEntry(published_decoder, vault_gemma(vocabulary_size, **sizes))


MODELS: dict[str, ModelEntry] = {
    **_twins(cifg, _CIFGS, _SI_CIFG),
    **_twins(transformer, _TRANSFORMERS, _SI_TRANSFORMER),
    "bert_tiny": ModelEntry(bert, _bert(layers=2, embedding=128)),
    "bert_mini": ModelEntry(bert, _bert(layers=4, embedding=256)),
    "bert_small": ModelEntry(bert, _bert(layers=4, embedding=512)),
    "bert_medium": ModelEntry(bert, _bert(layers=8, embedding=512)),
    "bert_base": ModelEntry(bert, _bert(layers=12, embedding=768)),
    "bert_large": ModelEntry(bert, _bert(layers=24, embedding=1024)),
    "bert_mega": ModelEntry(bert, _bert(layers=24, embedding=1536)),
    "vaultgemma_1m": _vault_gemma(4096, layers=4, heads=4, head_size=32, embedding=128, mlp=512),
    "vaultgemma_10m": _vault_gemma(8192, layers=8, heads=4, head_size=64, embedding=256, mlp=1024),
    "vaultgemma_20m": _vault_gemma(16_384, layers=8, heads=4, head_size=64, embedding=384, mlp=1152),
    "vaultgemma_100m": _vault_gemma(32_768, layers=13, heads=4, head_size=128, embedding=640, mlp=2560),
    # The sizes of the released checkpoint, which are not those of its report's table 1.
    "vaultgemma_1b": _vault_gemma(256_000, layers=26, heads=4, head_size=256, embedding=1152, mlp=6912),
    "gru4rec_tiny": ModelEntry(gru4rec, RecurrentRecommenderConfig(embedding=16, hidden=32)),
    "gru4rec": ModelEntry(gru4rec, RecurrentRecommenderConfig()),
    "lstm4rec_tiny": ModelEntry(lstm4rec, RecurrentRecommenderConfig(embedding=16, hidden=32)),
    "lstm4rec": ModelEntry(lstm4rec, RecurrentRecommenderConfig()),
    "sasrec_tiny": ModelEntry(sasrec, SasRecConfig(layers=1, embedding=16, mlp=64)),
    "sasrec": ModelEntry(sasrec, SasRecConfig()),
    "dpformer_tiny": ModelEntry(dpformer, DpFormerConfig(layers=1, embedding=16, mlp=64)),
    "dpformer": ModelEntry(dpformer, DpFormerConfig()),
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
      name: a key of `MODELS`, which may have settings of its family behind it, as `cifg_1m+output_norm=rms_norm` has
        (`fedlm.models.model_settings`); `transformer_LAYERSxWIDTH`, a Transformer of that shape with heads of 32 and
        feed-forward layers of four times the width; the path of a model's description (`fedlm.models.model_files`),
        which ends in `.json`, or `module:entry` for a `ModelEntry` of your own in a module that Python finds.
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


def has_reattention(name: str) -> bool:
    """Say whether a model corrects its attention for the noise that is in its parameters; see `create_model`."""
    return hasattr(find_entry(name).config, _ERRORS)


def refuse_run_constants(name: str) -> None:
    """Refuse, as a ConfigurationError, a model with constants that follow from a run's noise, where none gives them."""
    if has_reattention(name):
        raise ConfigurationError(
            f"the model {name} has re-attention, which is for private runs of `fedlm pretrain` and `fedlm simulate`, "
            "which know the noise that it corrects for; take the model without re-attention"
        )


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
    base, *settings = name.split(_SETTING)
    entry = _imported_entry(base) if is_imported_name(base) else _registered_entry(base)
    try:
        return _entry_with(entry, settings)
    except ConfigurationError as error:
        raise UnknownModelError(f"model {name!r}: {error}") from error


def _entry_with(entry: ModelEntry, settings: Sequence[str]) -> ModelEntry:
    build, config = entry
    if _REATTENTION in settings and build is transformer:
        sizes = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        build, config = reattention_transformer, ReattentionConfig(**sizes)
        if settings.count(_REATTENTION) > 1:
            raise ConfigurationError(f"{_REATTENTION} is set twice")
        settings = [setting for setting in settings if setting != _REATTENTION]
    return ModelEntry(build, with_settings(config, settings)) if settings else ModelEntry(build, config)


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
    return import_named(
        name,
        what="model",
        expected="a ModelEntry",
        fits=lambda found: isinstance(found, ModelEntry),
        error=UnknownModelError,
    )


def standard_twin(name: str) -> str | None:
    """Name the standard architecture that a scale-invariant model is compared with, if there is one.

    Example:
      >>> standard_twin("si_cifg_1m+output_norm=none+hidden=64")
      'cifg_1m+hidden=64'
    """
    base, *settings = name.split(_SETTING)
    twin = base.removeprefix("si_")
    if twin == base or twin not in MODELS:
        return None
    own = MODELS[twin].config
    kept = [setting for setting in settings if setting == _REATTENTION or with_settings(own, [setting]) != own]
    return _SETTING.join([twin, *kept])
