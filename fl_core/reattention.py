"""The constants of models with re-attention: settings, and the errors of parameters that a run's plan leads to."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.errors import CheckpointError, ConfigurationError, setting
from fedlm.fl_core.privacy.origins.ancestry import BUDGET_FILE
from fedlm.fl_core.privacy.origins.relevance_origin import Counted, Relevance, RelevanceOrigin, read_relevance
from fedlm.models.families.reattention import ParameterErrors
from fedlm.models.registry import has_reattention

ERRORS_FACT = "parameter_errors_sha256"
"""Under which checkpoints and ledgers have the fingerprint of a model's constants; None of one without."""
ERRORS_FILE = "parameter_errors.json"
"""In the folder of a run with re-attention, and of its release: the constants themselves."""
NOT_THERE = (
    "is for private runs of `fedlm pretrain` and `fedlm simulate`, which know the noise that it corrects for; take the "
    "model without re-attention"
)


@dataclass(frozen=True, kw_only=True)
class ReattentionSettings:
    """What models with re-attention know of the noise in their parameters."""

    relevance: Path | None = None
    """How often each token occurs in what is clipped as a whole: a file of `fedlm data relevance`. Models with
    re-attention, trained with privacy, need one: attention is corrected by it. What it tells of the people whose text
    was counted is part of what the run states; with one that was counted without privacy, and is not public, the run is
    NOT PRIVATE."""
    permute_relevance: bool = False
    """A control, which should not help: exchange the relevances among the tokens at random, by the seed."""

    def check_reattention(self) -> None:
        """Refuse what does not fit together. Raises ConfigurationError."""
        check_value_types(self)
        if self.permute_relevance and self.relevance is None:
            raise ConfigurationError(
                f"{setting('permute_relevance')} does nothing without {setting('relevance')}; give that too, or leave "
                "it out"
            )


class Reattention(NamedTuple):
    """The constants of a run's model, and where they come from."""

    errors: ParameterErrors
    origin: RelevanceOrigin

    def about(self) -> dict[str, Any]:
        """Make the record for the run's summary."""
        return {"sha256": self.errors.fingerprint(), "noise_batch_ratio": self.errors.noise_batch_ratio}


def relevance_of_run(
    settings: ReattentionSettings,
    model: str,
    private: bool,
    data: Path,
    vocabulary: str,
    training_data: str | None,
    sequences: tuple[Counted, int, str],
    adapters: bool = False,
) -> Relevance | None:
    """Read the relevances that a run's model corrects its attention by; None where it does not.

    Args:
      settings: of the run.
      model: its name.
      private: whether the run has noise.
      data: folder of its data.
      vocabulary: fingerprint of the data's tokenizer.
      training_data: fingerprint of the training clients' text.
      sequences: the unit that is clipped, and for `example` the length and the packing of sequences.
      adapters: whether the run trains low-rank adapters.

    Raises:
      ConfigurationError: they are missing, do nothing, or were counted for other data.
    """
    corrected, path = has_reattention(model), settings.relevance
    if not (corrected and private):
        if path is not None:
            why = "without noise there is nothing to correct" if corrected else f"{model} has no re-attention"
            raise ConfigurationError(f"{setting('relevance')} is {path}, which does nothing: {why}; leave it out")
        return None
    if adapters:
        raise ConfigurationError(
            f"{setting('lora_rank')} with the model {model}: re-attention is for models that are trained whole; leave "
            f"{setting('lora_rank')} out"
        )
    if path is None:
        raise ConfigurationError(
            f"the model {model} corrects its attention by how often each token occurs in a unit; give "
            f"{setting('relevance')}, a file that `fedlm data relevance {data} --out FILE` makes"
        )
    found = read_relevance(path)
    if found.vocabulary != vocabulary:
        raise ConfigurationError(
            f"{path}: was counted for another vocabulary than that of {data}; count again with `fedlm data relevance`"
        )
    if found.origin.private is not None and found.training_data != training_data:
        raise ConfigurationError(
            f"{path}: was counted privately in another data set than {data}, so that what it spends does not add up "
            "with what this run spends; count in this one"
        )
    if found.origin.kind == "public" and training_data is not None and found.training_data == training_data:
        raise ConfigurationError(
            f"{path}: is said to be public, but was counted in the very text of {data}, of whose people this run makes "
            f"a promise; count with {setting('epsilon')} and {setting('delta')}, or in public text with the same "
            "tokenizer"
        )
    if found.origin.kind != "public" and (data / BUDGET_FILE).exists():
        raise ConfigurationError(
            f"{path}: was counted in training data, and the privacy budget of {data} knows nothing of that; give "
            "public relevances"
        )
    unit, length, packing = sequences
    counted = (found.unit, found.length, found.packing) if unit == "example" else found.unit
    if counted != (sequences if unit == "example" else unit):
        of_sequences = f" --length {length} --packing {packing}" if unit == "example" else ""
        raise ConfigurationError(
            f"{path}: was counted by {found.unit}, in sequences of {found.length} tokens, packing {found.packing}, but "
            f"this run clips by {unit}; count with `fedlm data relevance --unit {unit}{of_sequences}`"
        )
    return found


def reattention_of(
    relevance: Relevance | None, settings: ReattentionSettings, noise_batch_ratio: float, seed: int
) -> Reattention | None:
    """Make the constants of a run's model of its relevances and the noise of its plan; None without relevances."""
    if relevance is None:
        return None
    errors = ParameterErrors(noise_batch_ratio, relevance.values)
    return Reattention(errors.permuted(seed) if settings.permute_relevance else errors, relevance.origin)


def refuse_reattention(model: str) -> None:
    """Refuse a model with re-attention where nothing gives it the constants it needs. Raises ConfigurationError."""
    if has_reattention(model):
        raise ConfigurationError(f"the model {model} has re-attention, which {NOT_THERE}")


def errors_as_text(errors: ParameterErrors) -> str:
    """Make the content of `ERRORS_FILE`."""
    record = {"noise_batch_ratio": errors.noise_batch_ratio, "relevance": list(errors.relevance)}
    return json.dumps(record, indent=1) + "\n"


def keep_errors(folder: Path, errors: ParameterErrors) -> None:
    """Write a model's constants into the folder of its run. Raises DiskError where they cannot be written."""
    write_atomically(folder / ERRORS_FILE, errors_as_text(errors))


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
