"""What a capability adds to a run, at each place where the life of a run has room for it.

A capability (low-rank adapters, a warm start, an audit ...) is one file and a line in the registry of each command that
has it. The life of a run asks all of its capabilities at each place, in the order of the registry, and knows none of
them by name. What a class does not override adds nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

from fedlm.fl_core.composed_settings import part_of
from fedlm.fl_core.privacy.origins.ancestry import Phase
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.rounds.local_sgd import LocalTraining
from fedlm.fl_core.rounds.round_loop import FederatedOptimization, PlainAveraging
from fedlm.fl_core.runs.identity import Fact
from fedlm.models.base import Model, Params
from fedlm.models.special_tokens import SpecialTokens

if TYPE_CHECKING:
    # A run without privacy need not load the libraries of privacy.
    from fedlm.fl_core.privacy.promise.selection.number_of_trials import TrialsLaw
    from fedlm.fl_core.runs.private_releases import Reservation

_Settings = TypeVar("_Settings")


class OpenedData(Protocol):
    """What a data set says of itself."""

    @property
    def path(self) -> Path: ...
    @property
    def vocabulary_size(self) -> int: ...
    @property
    def special_tokens(self) -> SpecialTokens: ...


class Clipped(NamedTuple):
    """What is clipped as a whole."""

    unit: Literal["example", "client"]
    length: int  # tokens of a sequence
    packing: str  # of texts into sequences


@dataclass(frozen=True, kw_only=True)
class Opening:
    """A run whose settings were read and whose data was opened, and of which nothing is made yet."""

    settings: Any  # of the run
    private: bool  # whether it has noise
    secret: bool  # whether that is nobody's to compute again
    vocabulary: str  # fingerprint of the tokenizer
    data: OpenedData | None = None  # None in a deployment
    training_data: str | None = None  # fingerprint of the training data; None where nobody knows it
    clipped: Clipped | None = None  # None in a deployment
    brought: tuple["Capability", ...] = ()  # what a program has given by object
    own_model: Any = None  # what it has given in place of a model's name
    folder: Path | None = None  # in which the run may have been begun, only read
    needs_first: bool = False  # whether the first parameters are needed where the run goes on, too
    trained_by: str | None = None  # the setting by which a part of the model is trained; None for all of it

    def part(self, kind: type[_Settings]) -> _Settings:
        """Give the part of the settings that is of a kind."""
        return part_of(self.settings, kind)


class Builder(Protocol):
    """Builds a run's model for its data."""

    def __call__(self, vocabulary_size: int, special_tokens: SpecialTokens, **constants: Any) -> Model: ...


class Ended(NamedTuple):
    """A run that has taken its last step."""

    model: Model  # the whole one
    first: Callable[[], Params]  # makes the parameters of the whole model before the first step
    last: Callable[[], Params]  # makes those after the last
    delta: float  # at which epsilon is stated


class Capability:
    """What one capability adds to a run."""

    facts: ClassVar[Mapping[str, Fact]] = {}
    """What may not change when a run goes on: by names in checkpoints, with the values of a run without it."""
    unsaid: ClassVar[Mapping[str, Any]] = {}
    """What the summary of a run without it says."""

    @classmethod
    def of(cls, opening: Opening) -> "Capability | None":
        """Read it from settings and data; None of a run without it. Raises UserError where it does not fit."""
        return None

    def opened(self, opening: Opening) -> Opening:
        """Say what those behind it are to know. Raises UserError where the run does not fit."""
        return opening

    def store(self) -> Any:
        """Give a data set in place of the one that settings name; None for that one."""
        return None

    def builder(self) -> "Builder | None":
        """Give what builds the model in place of its name; None for that."""
        return None

    def recorded(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Say how the settings are written down."""
        return settings

    def data(self, train: Any) -> Any:
        """Make of the training data what is trained on."""
        return train

    def cohorts(self, cohorts: Any, clients: int) -> Any:
        """Say who takes part in which round, of so many clients."""
        return cohorts

    def local(self, training: LocalTraining) -> LocalTraining:
        """Say how clients train."""
        return training

    def drops(self) -> bool:
        """Say whether it drops anything in training, for which batches need keys."""
        return False

    def optimization(self, optimization: FederatedOptimization) -> FederatedOptimization:
        """Say how the server learns."""
        return optimization

    def averaging(self, averaging: PlainAveraging) -> PlainAveraging:
        """Say how sums become means, without privacy: in place of what those before it in the registry say, or around
        it, where what they add is to stay."""
        return averaging

    def undoes(self) -> bool:
        """Say whether a step that ruins the model is undone, without privacy."""
        return False

    def origins(self, origins: Origins) -> Origins:
        """Say where what the run begins with comes from, for its plan, ledger and statement."""
        return origins

    def law(self) -> "TrialsLaw | None":
        """Say how many runs it is chosen from, as its plan has to count."""
        return None

    def planned(self, noise_ratio: Callable[[], float]) -> "Capability":
        """Learn the noise of the plan: its standard deviation on a mean, in clip norms."""
        return self

    def constants(self) -> dict[str, Any]:
        """Give what the model is built with, beside its sizes."""
        return {}

    def trained(self, model: Model) -> Model:
        """Make of the whole model that of which the parameters are trained."""
        return model

    def first(self, params: Params) -> Params:
        """Make of fresh parameters those that training begins with."""
        return params

    def frozen(self, like: Params, folder: Path) -> Params | None:
        """Give the parameters beside which others are trained, `like` these shapes; all processes call it. None where
        the whole model is trained."""
        return None

    def whole(self, frozen: Params, trained: Params) -> Params:
        """Make parameters of the whole model."""
        return trained

    def keep(self, folder: Path) -> None:
        """Write into the folder of a run that has begun what it needs; all processes call it."""

    def reservation(self, training: Phase, origins: Origins) -> "Reservation | None":
        """Say what is reserved for all that the run plans."""
        return None

    def scores(self, model: Model, params: Params) -> dict[str, float | None]:
        """Score a model, beside its held-out loss: numbers by name."""
        return {}

    def fingerprints(self) -> dict[str, str | None]:
        """Give the values of `facts`."""
        return {}

    def about(self) -> dict[str, Any]:
        """Make what checkpoints and the ledger say of the run beside that."""
        return {}

    def summary(self, ended: Ended) -> dict[str, Any]:
        """Make what the summary says of it."""
        return {}

    @staticmethod
    def recorded_parameters(folder: Path, about: dict[str, Any], stored: Params) -> Params:
        """Make of what a checkpoint holds the parameters of the whole model, for who opens the run in a folder.
        `about` is what that checkpoint, or the ledger, says of it. Raises CheckpointError where anything is missing."""
        return stored

    @staticmethod
    def recorded_constants(folder: Path, about: dict[str, Any]) -> dict[str, Any]:
        """Read what the run's model was built with, beside its sizes. Raises CheckpointError where it is missing."""
        return {}

    @staticmethod
    def released_files(folder: Path, about: dict[str, Any]) -> dict[str, str]:
        """Give what is to be released beside the model: contents by names of files."""
        return {}

    @staticmethod
    def check_exportable(folder: Path, about: dict[str, Any]) -> None:
        """Refuse a model that no other program's form has a place for. Raises ConfigurationError."""
