"""A model's architecture and sizes as JSON, for models whose sizes no named model has.

`{"architecture": "cifg", "config": {...}}`, where `config` has the fields of the architecture's configuration but for
the special tokens, which are the vocabulary's, and the errors of parameters, which follow from a run's plan.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedlm.models.base import Model
from fedlm.models.errors import ConfigurationError
from fedlm.models.families.bert import BertConfig, bert
from fedlm.models.families.cifg import CifgConfig, cifg
from fedlm.models.families.published_decoder import published_decoder
from fedlm.models.families.published_decoder_config import PublishedDecoderConfig
from fedlm.models.families.reattention import DpFormerConfig, ReattentionConfig, dpformer, reattention_transformer
from fedlm.models.families.recurrent_recommenders import RecurrentRecommenderConfig, gru4rec, lstm4rec
from fedlm.models.families.sasrec import SasRecConfig, sasrec
from fedlm.models.families.transformer import TransformerConfig, transformer
from fedlm.models.model_settings import check_value, described_fields


class Architecture(NamedTuple):
    """How to build the models of an architecture, and what their configurations are."""

    build: Callable[[str, Any], Model]
    config: type


ARCHITECTURES = {
    "cifg": Architecture(cifg, CifgConfig),
    "transformer": Architecture(transformer, TransformerConfig),
    "reattention_transformer": Architecture(reattention_transformer, ReattentionConfig),
    "bert": Architecture(bert, BertConfig),
    "published_decoder": Architecture(published_decoder, PublishedDecoderConfig),
    "gru4rec": Architecture(gru4rec, RecurrentRecommenderConfig),
    "lstm4rec": Architecture(lstm4rec, RecurrentRecommenderConfig),
    "sasrec": Architecture(sasrec, SasRecConfig),
    "dpformer": Architecture(dpformer, DpFormerConfig),
}
"""By name."""


def describe_model(build: Callable[[str, Any], Model], config: Any) -> dict[str, Any]:
    """Describe a model, JSON-able. Raises ConfigurationError where its architecture is none of `ARCHITECTURES`."""
    for name, architecture in ARCHITECTURES.items():
        if architecture.build is build:
            fields = {field: getattr(config, field) for field in described_fields(architecture.config)}
            return {"architecture": name, "config": fields}
    raise ConfigurationError(f"the model's architecture is one of its own, none of {', '.join(ARCHITECTURES)}")


def read_description(document: Any) -> tuple[Callable[[str, Any], Model], Any]:
    """Read what `describe_model` made: what builds the model, and its configuration.

    Raises:
      ConfigurationError: the architecture is unknown, or a field is missing, unknown or of another type.
    """
    if not isinstance(document, Mapping) or str(document.get("architecture")) not in ARCHITECTURES:
        found = document.get("architecture") if isinstance(document, Mapping) else document
        raise ConfigurationError(f"the architecture is {found!r}, expected one of {', '.join(ARCHITECTURES)}")
    build, kind = ARCHITECTURES[str(document["architecture"])]
    given = document.get("config")
    types = described_fields(kind)
    if not isinstance(given, Mapping) or set(given) != set(types):
        odd = sorted(set(given) ^ set(types)) if isinstance(given, Mapping) else given
        raise ConfigurationError(f"config has not the fields of a {document['architecture']} (they differ in {odd})")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    for name, value in values.items():
        check_value(f"config: {name}", value, types[name])
    return build, kind(**values)


def read_model_file(path: Path) -> tuple[Callable[[str, Any], Model], Any]:
    """Read a file with a description; ConfigurationError where it is missing, or no description."""
    try:
        return read_description(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: cannot be read as a description of a model ({error})") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
