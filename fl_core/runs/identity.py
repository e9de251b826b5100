"""What makes a run that run: which folder, and which other process, belongs to it."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedlm.fl_core.composed_settings import changes_in_words
from fedlm.fl_core.errors import CheckpointError, ConfigurationError, setting
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.processes import gather
from fedlm.fl_core.runs.files.places import PLACES, places_of
from fedlm.fl_core.runs.outcome import restated
from fedlm.models.registry import DESCRIPTION

SUMMARY_FILE = "summary.json"
TRAINING_DATA = "training_data_sha256"
"""The name of the fact that is the fingerprint of the training clients' names and text."""


class Fact(NamedTuple):
    """A fingerprint of something that a run depends on beside its settings."""

    value: str | None  # None where the run does not depend on such a thing
    what: str
    # the names under which a summary has it, outermost first; empty where it has it not
    in_summary: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunIdentity:
    """What a run is. A folder that holds another one is refused, and so are processes that differ."""

    kind: str  # the name under which its settings lie in checkpoints and summary
    settings: dict[str, Any]
    facts: dict[str, Fact]  # by the names that they have in checkpoints
    paths: tuple[str, ...] = ()  # settings that name files, which may lie elsewhere when the run goes on
    may_change: tuple[str, ...] = ()  # settings that may be others when the run goes on
    unchecked: dict[str, Any] = field(default_factory=dict)  # what else checkpoints say of the run
    origins: Origins = field(default_factory=Origins)  # of what it begins with

    def about(self) -> dict[str, Any]:
        """Make what every checkpoint, and the ledger, says of the run."""
        facts = {name: fact.value for name, fact in self.facts.items()}
        # A model may be named by the file of its description.
        described = ("model",) * str(self.settings.get("model")).endswith(DESCRIPTION)
        places = {PLACES: places_of(self.settings, (*described, *self.paths))}
        return {self.kind: self.settings, **facts, **self.origins.as_json(), **places, **self.unchecked}

    def going_on(self, found: dict[str, Any]) -> "RunIdentity":
        """Take over what the run in the folder has written down of what it began with, given its `about`: it was true
        when that was read, whatever has become of the runs and files that it comes from."""
        return replace(self, origins=Origins.of_record(found))

    def check(self, found: dict[str, Any], directory: Path) -> None:
        """Refuse to go on with another run, given what `about` said when the run in the folder was begun. Raises
        CheckpointError where they differ in what may not change."""
        if self.kind not in found:
            raise _of_another_kind(directory)
        old, new = found[self.kind], self.settings
        fixed = (name for name in new if name not in self.paths + self.may_change)
        if what := changes_in_words(old, new, fixed):
            raise CheckpointError(
                f"{directory}: holds a run with other settings: {what}. Give the same settings to go on with it, or "
                f"another {setting('out')} to begin a new one"
            )
        for name, fact in self.facts.items():
            if found.get(name) != fact.value:
                raise CheckpointError(
                    f"{directory}: holds a run with another {fact.what}; give what it was begun with, or another "
                    f"{setting('out')}"
                )
        if self.origins.vocabulary.release not in (None, Origins.of_record(found).vocabulary.release):
            raise CheckpointError(
                f"{directory}: holds a run with the vocabulary of another import. The words are equal, but the noise "
                f"was drawn twice. Give the data set that the run was begun with, or another {setting('out')}"
            )

    def finished_summary(self, directory: Path, length: str) -> dict[str, Any] | None:
        """Read the summary of a run that has nothing left to do; None where there is none, or one of another run, or of
        one that is shorter or longer by the setting named `length`. What it says of privacy is by the run's ledger, as
        anybody can write a summary. Raises CheckpointError where the file is not a summary, or the ledger damaged."""
        path = directory / SUMMARY_FILE
        if not path.exists():
            return None
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
            if self.kind not in summary and "status" in summary:
                raise _of_another_kind(directory)
            old, new = summary[self.kind], self.settings
            free = {*self.paths, *self.may_change} - {length}
            same = all(old.get(name) == value for name, value in new.items() if name not in free)
            for fact in self.facts.values():
                same &= _in_summary(summary, fact) == fact.value
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path}: not a summary of ours ({error}); remove it, or give another {setting('out')}"
            ) from error
        return restated(summary, directory) if same else None

    def check_same_in_all_processes(self, precision: str) -> None:
        """Refuse processes that would not compute the same; all call it. Raises ConfigurationError where a process
        differs from process 0."""
        facts = {name: value for name, value in self.settings.items() if name not in self.paths}
        facts |= {fact.what: fact.value for fact in self.facts.values()}
        facts |= {
            "precision": precision,
            "version of jax": jax.__version__,
            "kind of device": jax.local_devices()[0].device_kind,
        }
        first, *others = gather(facts)
        for process, found in enumerate(others, start=1):
            different = [name for name in first if found.get(name) != first[name]]
            if different:
                what = "; ".join(
                    f"{setting(name) if name in self.settings else name} is {first[name]} in process 0 and "
                    f"{found.get(name)} there"
                    for name in different
                )
                raise ConfigurationError(f"process {process} differs from process 0: {what}. Start all with the same")


def _of_another_kind(directory: Path) -> CheckpointError:
    return CheckpointError(f"{directory}: holds a run of another kind; give another {setting('out')}")


def _in_summary(summary: dict[str, Any], fact: Fact) -> Any:
    """Look a fact up; what a summary cannot tell is taken to be the same."""
    if not fact.in_summary or fact.in_summary[0] not in summary:
        return fact.value
    found: Any = summary
    for name in fact.in_summary:
        found = found and found[name]
    return found
