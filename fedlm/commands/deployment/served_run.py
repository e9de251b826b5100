"""What a server trains: the settings of a run, and what is made of them."""

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from fedlm.commands.deployment.listening import Listening
from fedlm.fl_core.deployment.event_log import event
from fedlm.fl_core.deployment.runs.scheduling import Scheduling
from fedlm.fl_core.deployment.server.settings import Deployment
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.number_ranges import Count

if TYPE_CHECKING:
    from fedlm.fl_core.rounds.settings import TrainingSettings
    from fedlm.models.base import Model
    from fedlm.models.precision import Precision
    from fedlm.simulations.data.vocabulary.tokenization import Tokenizer

_OF_NOISE = ("noise_norm", "signal_to_noise")


@dataclass(frozen=True, kw_only=True)
class ServedRun:
    """One model that clients which dial in train."""

    deployment: Deployment
    vocabulary: Path
    """Tokenizer: its JSON file, or the folder of a data set that `fedlm data import` wrote."""
    vocabulary_origin: Literal["public"] | None = None
    """Say that the vocabulary is public: made without text of anybody whom the guarantee has to protect. The run's
    statement repeats this. If not given, the record in the data set of --vocabulary counts."""
    heldout: Path | None = None
    """Folder of a data set with the same tokenizer. The model is scored on its held-out clients."""
    heldout_examples: Annotated[Count, OnlyWith("heldout")] = 10_000
    """Held-out examples to score on; always the same ones."""


@dataclass(frozen=True, kw_only=True)
class QueuedRun(ServedRun):
    """A run among several of one server."""

    scheduling: Scheduling = field(default_factory=Scheduling)


def log_release(row: dict[str, Any]) -> None:
    """Log a round's metrics, but for what a log may not say: with the noise's size and a released mean, whoever reads
    the log could tell who took part."""
    event("round_released", **{name: value for name, value in row.items() if name not in _OF_NOISE})


class ServedModel(NamedTuple):
    """What a server of some settings trains."""

    model: "Model"
    precision: "Precision"
    tokenizer: "Tokenizer"
    content: bytes  # of the tokenizer's file, as clients download it


def served_model(name: str, training: "TrainingSettings", vocabulary: Path) -> ServedModel:
    """Make the model of a deployment.

    Args:
      name: of the model.
      training: the settings.
      vocabulary: the tokenizer's file, or the folder of a data set.

    Raises:
      ConfigurationError: devices do not know such a model or tokenizer, or the model cannot read sequences as long.
    """
    import jax

    from fedlm.fl_core.privacy.origins.vocabulary_origin import tokenizer_file
    from fedlm.models.layers.dropout import with_dropout
    from fedlm.models.precision import resolve_precision, with_precision
    from fedlm.models.registry import refuse_run_constants
    from fedlm.models.special_tokens import OWN
    from fedlm.models.training_shapes import check_length
    from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
    from fedlm.simulations.experiments.federated_models import create_federated_model

    refuse_run_constants(name)
    path = tokenizer_file(vocabulary)
    tokenizer = Tokenizer.load(path)
    if tokenizer.special_tokens != OWN:
        raise ConfigurationError(
            f"{path}: has the special tokens {', '.join(tokenizer.special_tokens.names)}, but devices know only "
            f"{', '.join(OWN.names)}; give a tokenizer that fedlm made"
        )
    precision = resolve_precision(training.precision, jax.default_backend())
    model = with_precision(
        with_dropout(create_federated_model(name, tokenizer.vocabulary_size), training.dropout), precision
    )
    check_length(name, model, training.length)
    return ServedModel(model, precision, tokenizer, path.read_bytes())


def make_task(run: ServedRun, listening: Listening) -> Any:
    """Make what a server trains that listens so. Raises UserError where that cannot be."""
    from fedlm.fl_core.deployment.server.task import Task
    from fedlm.simulations.data.vocabulary.given_vocabulary import given_origin

    deployment = run.deployment
    if listening.insecure and deployment.aggregation == "secure":
        raise ConfigurationError(
            f"{setting('aggregation')} is secure, which needs clients' certificates; give {setting('keys')}, and leave "
            f"{setting('insecure')} out"
        )
    model, precision, tokenizer, content = served_model(deployment.model, deployment.training, run.vocabulary)
    fingerprint = tokenizer.fingerprint
    return Task(
        deployment=deployment,
        model=model,
        vocabulary=content,
        fingerprint=fingerprint,
        score=None if run.heldout is None else _score(run, model, precision, fingerprint),
        vocabulary_origin=given_origin(run.vocabulary, fingerprint, run.vocabulary_origin),
        authorities=_authorities(run, listening.keys),
        plan_signer=_plan_signer(listening),
    )


def _authorities(run: ServedRun, keys: Path | None) -> Any:
    from fedlm.fedlm_client.link.credentials import AUTHORITY_FILE, read_certificates

    if run.deployment.aggregation != "secure" or keys is None:
        return ()
    return tuple(read_certificates(keys / AUTHORITY_FILE))


def _plan_signer(listening: Listening) -> Any:
    from fedlm.fl_core.deployment.plans.litert.graph import load_schema
    from fedlm.fl_core.deployment.security.plan_keys import PLAN_KEY_FILE, PlanSigner

    path = listening.plan_key
    if path is None and listening.keys is not None and (listening.keys / PLAN_KEY_FILE).exists():
        path = listening.keys / PLAN_KEY_FILE
    if path is None:
        return None
    load_schema()
    return PlanSigner(path)


def _score(run: ServedRun, model: Any, precision: Any, fingerprint: str) -> Any:
    from fedlm.fl_core.rounds.scores import evaluate
    from fedlm.fl_core.runs.round_rows import named_scores
    from fedlm.models.precision import precision_scope
    from fedlm.simulations.data.federated_data import StoredData, device_batches
    from fedlm.simulations.data.store.token_store import TokenStore

    assert run.heldout is not None
    store = TokenStore.open(run.heldout)
    if store.fingerprint != fingerprint:
        raise ConfigurationError(
            f"{run.heldout}: has another tokenizer than {run.vocabulary}; give a data set of the same one"
        )
    data = StoredData(store.split("heldout"), run.deployment.training.length)

    @functools.cache
    def batches() -> list[Any]:
        return list(device_batches(data, run.deployment.training.length, run.heldout_examples))

    def score(params: Any) -> dict[str, Any]:
        with precision_scope(precision):
            return named_scores(evaluate(model, params, batches()), "heldout")

    return score
