"""Re-attention: models whose attention is corrected by the noise of the run's plan and the relevances of tokens."""

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.composed_settings import PartSettings
from fedlm.fl_core.errors import CheckpointError, ConfigurationError, setting
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.privacy.origins.ancestry import BUDGET_FILE
from fedlm.fl_core.privacy.origins.relevance_origin import Relevance, read_relevance
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.processes import is_first
from fedlm.fl_core.runs.capabilities.interface import Capability, Clipped, Ended, Opening
from fedlm.fl_core.runs.identity import Fact
from fedlm.models.families.parameter_errors import ParameterErrors
from fedlm.models.registry import has_reattention

ERRORS_FACT = "parameter_errors_sha256"
"""Under which checkpoints and ledgers have the fingerprint of a model's constants; None of one without."""
ERRORS_FILE = "parameter_errors.json"
"""In the folder of a run with re-attention, and of its release: the constants themselves."""


@dataclass(frozen=True, kw_only=True)
class ReattentionSettings(PartSettings):
    """What models with re-attention know of the noise in their parameters."""

    relevance: Path | None = None
    """File of `fedlm data relevance`: how often each token occurs in what is clipped as a whole. Models with
    re-attention need it for training with privacy, to correct attention. The run's statement includes what the file
    tells of the people whose text was counted. If that was counted without privacy, and is not public, the run is NOT
    PRIVATE."""
    permute_relevance: Annotated[bool, OnlyWith("relevance")] = False
    """A control, which should not help: exchange the relevances among the tokens at random, by the seed."""

    def of_run(self, model: str, private: bool) -> "ReattentionSettings":
        # Relevances are of those alone that need them.
        return self if self.relevance is None or (private and has_reattention(model)) else ReattentionSettings()


class Reattention(Capability):
    """The constants of a run's model, and where they come from."""

    facts: ClassVar[Mapping[str, Fact]] = {
        ERRORS_FACT: Fact(
            None,
            "amount of noise, or relevance of tokens, that attention is corrected by",
            ("parameter_errors", "sha256"),
        )
    }

    def __init__(self, relevance: Relevance, permuted_by: int | None, noise_ratio: Callable[[], float] | None = None):
        """Correct attention by relevances, exchanged at random by a seed where there is one, and by noise."""
        self._relevance, self._permuted_by, self._noise_ratio = relevance, permuted_by, noise_ratio

    @classmethod
    def of(cls, opening: Opening) -> "Reattention | None":
        settings = opening.part(ReattentionSettings)
        relevance = _relevance_of(settings, opening)
        permuted_by = opening.settings.seed if settings.permute_relevance else None
        return None if relevance is None else cls(relevance, permuted_by)

    def planned(self, noise_ratio: Callable[[], float]) -> "Reattention":
        return Reattention(self._relevance, self._permuted_by, noise_ratio)

    @functools.cached_property
    def errors(self) -> ParameterErrors:
        """The constants, once the noise is known."""
        assert self._noise_ratio is not None
        errors = ParameterErrors(self._noise_ratio(), self._relevance.values)
        return errors if self._permuted_by is None else errors.permuted(self._permuted_by)

    def origins(self, origins: Origins) -> Origins:
        return origins._replace(relevance=self._relevance.origin)

    def constants(self) -> dict[str, Any]:
        return {"parameter_errors": self.errors}

    def keep(self, folder: Path) -> None:
        if is_first():
            write_atomically(folder / ERRORS_FILE, _errors_as_text(self.errors))

    def fingerprints(self) -> dict[str, str | None]:
        return {ERRORS_FACT: self.errors.fingerprint()}

    def summary(self, ended: Ended) -> dict[str, Any]:
        about = {"sha256": self.errors.fingerprint(), "noise_batch_ratio": self.errors.noise_batch_ratio}
        return {"parameter_errors": about}

    @staticmethod
    def recorded_constants(folder: Path, about: dict[str, Any]) -> dict[str, Any]:
        fingerprint = about.get(ERRORS_FACT)
        return {} if fingerprint is None else {"parameter_errors": read_errors(folder, fingerprint)}

    @staticmethod
    def released_files(folder: Path, about: dict[str, Any]) -> dict[str, str]:
        found = Reattention.recorded_constants(folder, about)
        return {ERRORS_FILE: _errors_as_text(found["parameter_errors"])} if found else {}

    @staticmethod
    def check_exportable(folder: Path, about: dict[str, Any]) -> None:
        if about.get(ERRORS_FACT) is not None:
            raise ConfigurationError(
                f"{folder}: its model has re-attention, and no other program's form has a place for its constants; "
                "`fedlm release` writes the model with them"
            )


def _relevance_of(settings: ReattentionSettings, opening: Opening) -> Relevance | None:
    """Read the relevances that a run's model corrects its attention by; None where it does not. Raises
    ConfigurationError where they are missing, do nothing, or were counted for other data."""
    path = settings.relevance
    if opening.own_model is not None:
        if path is not None or hasattr(getattr(opening.own_model, "config", None), "parameter_errors"):
            raise ConfigurationError(
                "a model with re-attention needs relevance, and an object brings constants of its own; give the model "
                "by its name, or as a file"
            )
        return None
    model = opening.settings.model
    corrected = has_reattention(model)
    if not (corrected and opening.private):
        if path is not None:
            why = "without noise there is nothing to correct" if corrected else f"{model} has no re-attention"
            raise ConfigurationError(f"{setting('relevance')} is {path}, which does nothing: {why}; leave it out")
        return None
    if opening.trained_by is not None:
        name = setting(opening.trained_by)
        raise ConfigurationError(
            f"{name} with the model {model}: re-attention is for models that are trained whole; leave {name} out"
        )
    assert opening.data is not None
    data = opening.data.path
    if path is None:
        raise ConfigurationError(
            f"the model {model} corrects its attention by how often each token occurs in a unit; give "
            f"{setting('relevance')}, a file that `fedlm data relevance {data} --out FILE` makes"
        )
    found = read_relevance(path)
    _check_text(path, found, opening, data)
    _check_units(path, found, opening.clipped)
    return found


def _check_text(path: Path, found: Relevance, opening: Opening, data: Path) -> None:
    if found.vocabulary != opening.vocabulary:
        raise ConfigurationError(
            f"{path}: was counted for another vocabulary than that of {data}; count again with `fedlm data relevance`"
        )
    training_data = opening.training_data
    if found.origin.private is not None and found.training_data != training_data:
        raise ConfigurationError(
            f"{path}: was counted privately in another data set than {data}, so the count and this run spend the "
            "privacy of different people; count in this data set"
        )
    if found.origin.kind == "public" and training_data is not None and found.training_data == training_data:
        raise ConfigurationError(
            f"{path}: is said to be public, but was counted in the text of {data}, and this run makes a promise to the "
            f"people of that text. Count with {setting('epsilon')} and {setting('delta')}, or in public text with the "
            "same tokenizer"
        )
    if found.origin.kind != "public" and (data / BUDGET_FILE).exists():
        raise ConfigurationError(
            f"{path}: was counted in training data, and the privacy budget of {data} knows nothing of that; give "
            "public relevances"
        )


def _check_units(path: Path, found: Relevance, clipped: Clipped | None) -> None:
    assert clipped is not None
    of_examples = clipped.unit == "example"
    counted = (found.unit, found.length, found.packing)
    if counted != clipped if of_examples else found.unit != clipped.unit:
        of_sequences = f" --length {clipped.length} --packing {clipped.packing}" if of_examples else ""
        raise ConfigurationError(
            f"{path}: was counted by {found.unit}, in sequences of {found.length} tokens, packing {found.packing}, but "
            f"this run clips by {clipped.unit}; count with `fedlm data relevance --unit {clipped.unit}{of_sequences}`"
        )


def _errors_as_text(errors: ParameterErrors) -> str:
    """Make the content of `ERRORS_FILE`."""
    record = {"noise_batch_ratio": errors.noise_batch_ratio, "relevance": list(errors.relevance)}
    return json.dumps(record, indent=1) + "\n"


def read_errors(folder: Path, fingerprint: str | None = None) -> ParameterErrors:
    """Read the constants of a model with re-attention, for `fedlm.create_model`.

    Args:
      folder: of its run, or of what `fedlm release` made of it.
      fingerprint: that they must have; any where None.

    Raises:
      CheckpointError: they are missing, damaged, or others.
    """
    path = folder / ERRORS_FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        found = ParameterErrors(float(record["noise_batch_ratio"]), tuple(map(float, record["relevance"])))
    except (OSError, ValueError, KeyError, TypeError, ConfigurationError) as error:
        raise CheckpointError(
            f"{path}: are not the constants of a model with re-attention ({error}); put the file of the run back"
        ) from error
    if fingerprint is not None and found.fingerprint() != fingerprint:
        raise CheckpointError(
            f"{path}: are not the constants that the run was trained with; put the file of the run back"
        )
    return found
