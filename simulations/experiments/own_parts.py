"""What a program brings by object where settings name something: a model, data, an optimizer, a sampler.

An object cannot be compared with that of an earlier process. So a run that is to go on later needs names for its
objects, which stand for them in its record; what is behind a name is the program's own affair.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from fedlm.fl_core.client_algorithms.interface import ClientAlgorithm
from fedlm.fl_core.client_algorithms.registry import CLIENT_ALGORITHMS, check_comparable
from fedlm.fl_core.errors import CheckpointError, ConfigurationError, setting
from fedlm.fl_core.rounds.cohorts import CohortSampler
from fedlm.fl_core.rounds.local_sgd import LocalTraining
from fedlm.fl_core.rounds.round_loop import FederatedOptimization
from fedlm.fl_core.rounds.server_optimizers import OwnServerOptimizer, check_server_rate
from fedlm.fl_core.runs.capabilities.interface import Builder, Capability, Opening
from fedlm.fl_core.runs.files.metrics_log import finite_or_none
from fedlm.models.arguments import checked_arguments
from fedlm.models.base import Model, Params
from fedlm.models.registry import ModelEntry, with_special_tokens
from fedlm.models.special_tokens import OWN, SpecialTokens
from fedlm.simulations.data.federated_data import DataSet
from fedlm.simulations.engine.cohort_samplers import Cohorts

_Object = TypeVar("_Object")

OwnModel: TypeAlias = Model | ModelEntry | Callable[[int], Model]
"""A model, or how to build one for a size of the vocabulary."""

Evaluation: TypeAlias = Callable[[Model, Params], Mapping[str, float]]
"""From a model and parameters to numbers by name, which go into the round's row."""

_ANONYMOUS = "own()"


class Named(NamedTuple, Generic[_Object]):
    """An object with a name that stands for it in a run's record.

    Example:
      >>> Named("clipped adam", object()).name
      'clipped adam'
    """

    name: str
    object: _Object


@checked_arguments
def named(name: str, object: _Object) -> Named[_Object]:
    """Give an object a name, by which a run that goes on later knows it. Raises ConfigurationError where the name is
    empty or has parentheses.

    Example:
      >>> import optax
      >>> named("sgd with momentum", optax.sgd(0.5, momentum=0.9)).name
      'sgd with momentum'
    """
    if not name.strip() or set(name) & set("()"):
        raise ConfigurationError(f"the name of an object is {name!r}, but must be of some letters, without parentheses")
    return Named(name, object)


@dataclass(frozen=True, kw_only=True)
class OwnParts(Capability):
    """What a program brings by object; what it does not bring is None, and settings say what it is."""

    model: OwnModel | None = None
    data_set: DataSet | None = None
    client_algorithm: ClientAlgorithm | None = None
    server_optimizer: OwnServerOptimizer | None = None
    cohort_sampler: CohortSampler | None = None
    evaluation: Evaluation | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def opened(self, opening: Opening) -> Opening:
        if opening.private:
            self.check_private()
        return dataclasses.replace(opening, own_model=self.model)

    def store(self) -> DataSet | None:
        return self.data_set

    def builder(self) -> Builder | None:
        model = self.model
        if model is None:
            return None
        # A function may make another model when it is called again.
        build = _same_model if isinstance(model, ModelEntry | Model) else build_model
        return lambda vocabulary_size, special_tokens, **constants: build(model, vocabulary_size, special_tokens)

    def recorded(self, settings: dict[str, Any]) -> dict[str, Any]:
        return settings | dict(self.labels)

    def cohorts(self, cohorts: Cohorts, clients: int) -> Cohorts:
        if self.cohort_sampler is None:
            return cohorts
        return Cohorts(CheckedSampler(self.cohort_sampler, clients))

    def local(self, training: LocalTraining) -> LocalTraining:
        algorithm = self.client_algorithm
        return training if algorithm is None else dataclasses.replace(training, algorithm=algorithm)

    def optimization(self, optimization: FederatedOptimization) -> FederatedOptimization:
        server, algorithm = self.server_optimizer, self.client_algorithm
        if server is not None:
            check_server_rate(server, optimization.server_learning_rate, optimization.server_warmup_rounds)
        return dataclasses.replace(
            optimization, server=server or optimization.server, algorithm=algorithm or optimization.algorithm
        )

    def scores(self, model: Model, params: Params) -> dict[str, float | None]:
        if self.evaluation is None:
            return {}
        own = self.evaluation(model, params)
        try:
            return {str(name): finite_or_none(float(value)) for name, value in dict(own).items()}
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"evaluation gave {own!r}, but must give numbers by name ({error})") from error

    def check_can_go_on(self, out: Path) -> None:
        """Refuse a folder in which a run was begun, where nothing tells whether its objects were these. Raises
        CheckpointError."""
        nameless = [name for name, label in self.labels.items() if label == _ANONYMOUS and name != "data"]
        if nameless and any((out / begun).exists() for begun in ("checkpoints", "metrics.jsonl", "summary.json")):
            raise CheckpointError(
                f"{out}: holds a run already, and nothing shows whether its {', '.join(nameless)} was this object. "
                "Give another out; or, in every run that is to go on, give the object a name, as in "
                "fedlm.named('mine', ...)"
            )

    def check_private(self) -> None:
        """Refuse what a guarantee does not cover. Raises ConfigurationError."""
        if self.cohort_sampler is not None:
            raise ConfigurationError(
                f"{setting('cohort_sampler')} is an object, and nothing bounds how often its cohorts take a client, "
                "so no epsilon could be stated; name the sampler poisson, "
                f"min_separation or shuffled_epochs"
            )
        if self.evaluation is not None:
            raise ConfigurationError(
                "evaluation would see the models of a private run before their release; give a callback, which is "
                "called with the parameters of released models"
            )


def take_object(setting: str, given: Any, labels: dict[str, str]) -> Any:
    """Find the object that is given for a setting, and note its label; None where a name of the registry, or of a
    module, is given."""
    if isinstance(given, str | os.PathLike):
        return None
    is_named = isinstance(given, Named)
    labels[setting] = f"own({given.name})" if is_named else _ANONYMOUS
    return given.object if is_named else given


def checked_algorithm(algorithm: Any) -> ClientAlgorithm:
    """Return a client algorithm. Raises ConfigurationError where it is none, or cannot tell itself from others."""
    if not isinstance(algorithm, ClientAlgorithm):
        what = f"the class {algorithm.__name__}" if isinstance(algorithm, type) else f"a {type(algorithm).__name__}"
        raise ConfigurationError(
            f"{setting('client_algorithm')} is {what}, but must be an object of a class derived from "
            "ClientAlgorithm, or a name"
        )
    check_comparable(algorithm)
    return algorithm


def settings_of_algorithm(algorithm: Any) -> dict[str, Any] | None:
    """Find the settings that name an algorithm of ours and its constants; None for one of the program's own."""
    for name, kind in CLIENT_ALGORITHMS.items():
        if type(algorithm) is kind:
            constants = {f"{name}_{field.name}": getattr(algorithm, field.name) for field in dataclasses.fields(kind)}
            return {"client_algorithm": name, **constants}
    return None


def build_model(model: OwnModel, vocabulary_size: int, special_tokens: SpecialTokens = OWN) -> Model:
    """Make a run's model of what a program brought. Raises ConfigurationError where it is none, or does not fit."""
    if isinstance(model, ModelEntry):
        config = dataclasses.replace(model.config, vocabulary_size=vocabulary_size)
        built: Any = model.build("own", with_special_tokens("own", config, special_tokens))
    else:
        built = model if isinstance(model, Model) or not callable(model) else model(vocabulary_size)
    if not isinstance(built, Model):
        raise ConfigurationError(
            f"{setting('model')} is a {type(built).__name__}, but must be a Model, a ModelEntry, a function that makes "
            "a Model of the size of the vocabulary, or a name"
        )
    if built.vocabulary_size != vocabulary_size:
        raise ConfigurationError(
            f"{setting('model')} has a vocabulary of {built.vocabulary_size}, but the data's has {vocabulary_size}; "
            "build it with that, or give a function that makes a Model of the size of the vocabulary"
        )
    if built.special_tokens != special_tokens:
        raise ConfigurationError(
            f"{setting('model')} has the special tokens {', '.join(built.special_tokens.names)}, but the data's are "
            f"{', '.join(special_tokens.names)}; build it with those, which language_model takes"
        )
    if built.objective != "causal":
        raise ConfigurationError(
            f"{setting('model')} has the {built.objective} objective, and federated runs train models to predict the "
            "next token"
        )
    return built


# The same object for the same model lets the next run reuse compiled programs.
@functools.lru_cache(maxsize=32)
def _same_model(model: ModelEntry | Model, vocabulary_size: int, special_tokens: SpecialTokens) -> Model:
    return build_model(model, vocabulary_size, special_tokens)


class CheckedSampler:
    """A sampler of one's own, whose cohorts are looked at before they are used."""

    def __init__(self, sampler: CohortSampler, num_clients: int):
        """Refuse what is no sampler."""
        if not callable(getattr(sampler, "sample", None)):
            raise ConfigurationError(
                f"{setting('cohort_sampler')} is a {type(sampler).__name__}, but must have a method "
                "sample(round_number), or be a name"
            )
        self._sampler, self._num_clients = sampler, num_clients

    def sample(self, round_number: int) -> np.ndarray:
        found = np.asarray(self._sampler.sample(round_number))
        fits = found.ndim == 1 and len(found) and np.issubdtype(found.dtype, np.integer)
        if not fits or len(np.unique(found)) < len(found) or not 0 <= found.min() <= found.max() < self._num_clients:
            raise ConfigurationError(
                f"{setting('cohort_sampler')} gave {np.array2string(found, threshold=10)} for round {round_number}, "
                f"but must give distinct indices of clients, int [cohort], from 0 to {self._num_clients - 1}"
            )
        return found.astype(np.int64)
