"""Language models trained on text that belongs to people: federated, simulated or central.

What a program needs is here by name, and is loaded when it is first used, so that `import fedlm` costs nothing.

Example:
  >>> import fedlm
  >>> "simulate" in dir(fedlm)
  True
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedlm.fl_core.client_algorithms.fedprox import FedProx as FedProx
    from fedlm.fl_core.client_algorithms.interface import ClientAlgorithm as ClientAlgorithm
    from fedlm.fl_core.client_algorithms.interface import LocalGradient as LocalGradient
    from fedlm.fl_core.client_algorithms.local_adam import LocalAdam as LocalAdam
    from fedlm.fl_core.client_algorithms.mime_lite import MimeLite as MimeLite
    from fedlm.fl_core.client_algorithms.registry import CLIENT_ALGORITHMS as CLIENT_ALGORITHMS
    from fedlm.fl_core.client_algorithms.sgd import Sgd as Sgd
    from fedlm.fl_core.composed_settings import compose as compose
    from fedlm.fl_core.composed_settings import with_changes as with_changes
    from fedlm.fl_core.errors import CheckpointError as CheckpointError
    from fedlm.fl_core.errors import ConfigurationError as ConfigurationError
    from fedlm.fl_core.errors import DataError as DataError
    from fedlm.fl_core.errors import UserError as UserError
    from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS as MECHANISMS
    from fedlm.fl_core.privacy.promise.guarantee import Guarantee as Guarantee
    from fedlm.fl_core.privacy.promise.guarantee import account as account
    from fedlm.fl_core.privacy.promise.guarantee import calibrate as calibrate
    from fedlm.fl_core.privacy.promise.plan import PrivacyPlan as PrivacyPlan
    from fedlm.fl_core.rounds.aggregation import CohortAggregate as CohortAggregate
    from fedlm.fl_core.rounds.cohorts import CohortSampler as CohortSampler
    from fedlm.fl_core.rounds.cohorts import UniformSampler as UniformSampler
    from fedlm.fl_core.rounds.round_loop import RoundPlan as RoundPlan
    from fedlm.fl_core.rounds.scores import Scores as Scores
    from fedlm.fl_core.rounds.scores import evaluate as evaluate
    from fedlm.fl_core.rounds.server_optimizers import SERVER_OPTIMIZERS as SERVER_OPTIMIZERS
    from fedlm.models.base import Batch as Batch
    from fedlm.models.base import Model as Model
    from fedlm.models.base import language_model as language_model
    from fedlm.models.base import parameter_count as parameter_count
    from fedlm.models.losses import ExampleSums as ExampleSums
    from fedlm.models.registry import MODELS as MODELS
    from fedlm.models.registry import ModelEntry as ModelEntry
    from fedlm.models.registry import create_model as create_model
    from fedlm.simulations.comparisons.cell_execution import LocalProcesses as LocalProcesses
    from fedlm.simulations.comparisons.comparison import run_comparison as run_comparison
    from fedlm.simulations.data.import_settings import ImportSettings as ImportSettings
    from fedlm.simulations.data.importing import import_text as import_text
    from fedlm.simulations.data.in_memory import DataInMemory as DataInMemory
    from fedlm.simulations.data.sources.registry import SOURCES as SOURCES
    from fedlm.simulations.data.store.token_store import TokenStore as TokenStore
    from fedlm.simulations.data.vocabulary.tokenization import Tokenizer as Tokenizer
    from fedlm.simulations.evaluation.trained_models import TrainedModel as TrainedModel
    from fedlm.simulations.evaluation.trained_models import open_model as open_model
    from fedlm.simulations.experiments.callbacks import Callback as Callback
    from fedlm.simulations.experiments.callbacks import EarlyStopping as EarlyStopping
    from fedlm.simulations.experiments.callbacks import MlflowCallback as MlflowCallback
    from fedlm.simulations.experiments.callbacks import WandbCallback as WandbCallback
    from fedlm.simulations.experiments.configuration import Comparison as Comparison
    from fedlm.simulations.experiments.configuration import Experiment as Experiment
    from fedlm.simulations.experiments.experiment import FinishedRound as FinishedRound
    from fedlm.simulations.experiments.experiment import FinishedRun as FinishedRun
    from fedlm.simulations.experiments.experiment import run_experiment as run_experiment
    from fedlm.simulations.experiments.own_parts import named as named
    from fedlm.simulations.experiments.simulating import simulate as simulate
    from fedlm.simulations.reporting.report import write_report as write_report

_HOMES = {
    "fl_core.rounds.aggregation": ("CohortAggregate",),
    "fl_core.client_algorithms.fedprox": ("FedProx",),
    "fl_core.client_algorithms.interface": (
        "ClientAlgorithm",
        "LocalGradient",
    ),
    "fl_core.client_algorithms.local_adam": ("LocalAdam",),
    "fl_core.client_algorithms.mime_lite": ("MimeLite",),
    "fl_core.client_algorithms.registry": ("CLIENT_ALGORITHMS",),
    "fl_core.client_algorithms.sgd": ("Sgd",),
    "fl_core.rounds.cohorts": (
        "CohortSampler",
        "UniformSampler",
    ),
    "fl_core.composed_settings": (
        "compose",
        "with_changes",
    ),
    "fl_core.errors": (
        "CheckpointError",
        "ConfigurationError",
        "DataError",
        "UserError",
    ),
    "fl_core.privacy.promise.guarantee": (
        "Guarantee",
        "account",
        "calibrate",
    ),
    "fl_core.privacy.mechanisms.registry": ("MECHANISMS",),
    "fl_core.privacy.promise.plan": ("PrivacyPlan",),
    "fl_core.rounds.round_loop": ("RoundPlan",),
    "fl_core.rounds.scores": (
        "Scores",
        "evaluate",
    ),
    "fl_core.rounds.server_optimizers": ("SERVER_OPTIMIZERS",),
    "models.base": (
        "Batch",
        "Model",
        "language_model",
        "parameter_count",
    ),
    "models.losses": ("ExampleSums",),
    "models.registry": (
        "MODELS",
        "ModelEntry",
        "create_model",
    ),
    "simulations.data.import_settings": ("ImportSettings",),
    "simulations.data.importing": ("import_text",),
    "simulations.data.in_memory": ("DataInMemory",),
    "simulations.data.sources.registry": ("SOURCES",),
    "simulations.data.store.token_store": ("TokenStore",),
    "simulations.data.vocabulary.tokenization": ("Tokenizer",),
    "simulations.evaluation.trained_models": (
        "TrainedModel",
        "open_model",
    ),
    "simulations.experiments.callbacks": (
        "Callback",
        "EarlyStopping",
        "MlflowCallback",
        "WandbCallback",
    ),
    "simulations.comparisons.cell_execution": ("LocalProcesses",),
    "simulations.comparisons.comparison": ("run_comparison",),
    "simulations.experiments.configuration": (
        "Comparison",
        "Experiment",
    ),
    "simulations.experiments.experiment": (
        "FinishedRound",
        "FinishedRun",
        "run_experiment",
    ),
    "simulations.experiments.own_parts": ("named",),
    "simulations.experiments.simulating": ("simulate",),
    "simulations.reporting.report": ("write_report",),
}
"""From modules to the names that come from them; type checkers read the imports above."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = list(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fedlm' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"fedlm.{_HOME_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
