"""Where the parameters that a run begins with come from: every training that they went through, the oldest first.

A run writes this down when it begins, and never reads the folders of those runs again. Nobody changes the accounting
by moving, deleting or changing them later. This module needs none of the libraries of privacy.
"""

import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.origins.relevance_origin import counted_in_the_open

InitialData = Literal["same", "public", "disjoint"]
"""Whose text parameters were made from, seen from the people that a run trains on: theirs, or nobody knows; public
text; other people's. Only a user can say the last two."""

BUDGET_FILE = "privacy-budget.jsonl"
"""In the folder of a data set that carries a budget."""
NOT_PRIVATE = "NOT PRIVATE"
REPEATABLE = "the noise follows from the experiment's seed"
IMPORTED = "imported"
"""In what a checkpoint says of parameters that were not trained here: what is known of them."""
MODEL_IMPORT = "model import"
"""The command by which they came here."""
CLAIM_FIELD = "publisher_claim"
"""In what a checkpoint says of imported parameters: what their publisher claims, see `PublisherClaim`."""
NOTHING_PROMISED = "it was trained without privacy"
OF_A_PUBLISHER = "its weights were imported, and nobody has checked what their publisher promises"
_LEDGER_MISSING = "its ledger is missing"
WITHOUT_LEDGER = (NOTHING_PROMISED, OF_A_PUBLISHER, _LEDGER_MISSING)
"""Why nothing is promised of a run without a ledger."""
TUNING_FIELD = "tuning"
"""In what checkpoints and ledger say of a run: `runs`, the number of private runs that it was compared with, or
`selection`, the private selection that it is a trial of; its ledger adds `chosen` to the best of those."""


class Phase(NamedTuple):
    """One training that parameters went through, as it stood when the next one began."""

    command: str  # `simulate`, `serve`, `pretrain` or `model import`
    folder: str  # where it was
    steps: int  # rounds, or steps, that the parameters have seen
    parameters_sha256: str  # of the parameters that the next training began with
    training_data_sha256: str | None  # fingerprint of its training data; None where nobody knows it
    people: InitialData  # whose text it was, seen from the run that this is written down in
    not_private: str | None = None  # why nothing is promised of it; None where its ledger promises something
    plan: dict[str, Any] | None = None  # its `PrivacyPlan`, JSON-able
    generations: Sequence[Sequence[int]] = ()  # of its noise, see `PrivacyLedger.generations`
    # of its ledger: the hashes of its first and last records, and their number
    ledger: dict[str, Any] | None = None
    tuning: dict[str, Any] | None = None  # what it was compared with, see `TUNING_FIELD`
    # of imported parameters: what their publisher claims, see `PublisherClaim`; None where that is not known
    claim: dict[str, Any] | None = None
    # where the relevances come from that its attention was corrected by, see `RelevanceOrigin`; None without
    relevance: dict[str, Any] | None = None
    # where its vocabulary comes from, see `VocabularyOrigin`
    vocabulary: dict[str, Any] | None = None

    @property
    def words(self) -> str:
        """Name it in a sentence; quote a folder's name that could be read as other words."""
        plain = all(character.isalnum() or character in "/._-+~@%" for character in self.folder)
        return f"`fedlm {self.command}` in {self.folder if plain else json.dumps(self.folder)}"


def check_initial_data(init_from: Any, initial_data: str) -> None:
    """Refuse a word on first parameters that is not known, or where there are none. Raises ConfigurationError."""
    if initial_data not in get_args(InitialData):
        raise ConfigurationError(
            f"{setting('initial_data')} is {initial_data!r}, but must be one of {get_args(InitialData)}"
        )
    if init_from is None and initial_data != "same":
        raise ConfigurationError(
            f"{setting('initial_data')} is {initial_data}, which does nothing without {setting('init_from')}; leave "
            "it out"
        )


def training_behind(
    ancestors: Sequence[Phase], parent: Phase, initial_data: InitialData, training_data: str | None
) -> tuple[Phase, ...]:
    """Put together what the parameters of a parent run went through, seen from a run that begins with them.

    Args:
      ancestors: what the parent has written down of its own first parameters.
      parent: the parent's own training; its `people` does not matter.
      initial_data: what the user says of all text that the parent's parameters were made from.
      training_data: fingerprint of the new run's training data; None where nobody knows it.

    Raises:
      ConfigurationError: the user's word contradicts the fingerprints.
    """
    same_people = training_data is not None and parent.training_data_sha256 == training_data
    seen = [
        # What the parent's user said holds of the parent's people; these are others where its data is another.
        phase if phase.people != "disjoint" or same_people else phase._replace(people="same")
        for phase in ancestors
    ] + [parent._replace(people="same")]
    seen = seen_from(seen, training_data)
    if initial_data == "same":
        return tuple(seen)
    for phase in seen:
        if phase.people == "same" and training_data is not None and phase.training_data_sha256 == training_data:
            raise ConfigurationError(
                f"{setting('initial_data')} is {initial_data}, but the first parameters come from {phase.words}, "
                f"which was trained on the very training clients of this run; leave {setting('initial_data')} out"
            )
    return tuple(phase._replace(people=initial_data) if phase.people == "same" else phase for phase in seen)


def seen_from(phases: Sequence[Phase], training_data: str | None = None) -> list[Phase]:
    """Mark trainings on a run's own data, or on data that may be of its people, as trainings on its people.

    This holds whatever a user said of them when they were behind a run on other data."""
    known = data_of_people(phases, training_data)
    return [_seen_by(phase, known) for phase in phases]


def _seen_by(phase: Phase, people: set[str]) -> Phase:
    """See a training from people whose text has one of these fingerprints."""
    if counted := counted_in_the_open(phase.relevance, people):
        phase = phase._replace(not_private=phase.not_private or counted)
    return phase._replace(people="same") if counted or phase.training_data_sha256 in people else phase


def on_other_data(phases: Sequence[Phase], training_data: str | None) -> list[Phase]:
    """List trainings on a run's people that may have had other training clients than the run.

    Its held-out clients may be among theirs, for instance if one source was split in two ways.
    """
    return [
        phase
        for phase in phases
        if phase.people == "same" and (training_data is None or phase.training_data_sha256 != training_data)
    ]


def with_all_doubts(farthest: Phase, *others: Phase) -> Phase:
    """Add to a record of a training what others of the same training say against it: that it was on the same people, or
    why nothing is promised."""
    for other in others:
        people = "same" if other.people == "same" else farthest.people
        farthest = farthest._replace(people=people, not_private=farthest.not_private or other.not_private)
    return farthest


def data_of_people(phases: Sequence[Phase], training_data: str | None = None) -> set[str]:
    """List the fingerprints of training data that count as that of a run's own people."""
    found = {training_data, *(phase.training_data_sha256 for phase in phases if phase.people == "same")}
    return {one for one in found if one is not None}


def recorded_ancestry(about: dict[str, Any]) -> tuple[Phase, ...]:
    """Read what a checkpoint or ledger says of what a run's first parameters went through."""
    phases = [Phase(**phase) for phase in about.get("ancestry", ())]
    return tuple(seen_from(phases, about.get("training_data_sha256")))


def settings_in(about: dict[str, Any]) -> dict[str, Any]:
    """Give the settings of a run of any kind, of what its checkpoint or ledger says of it."""
    return about.get("experiment") or about.get("pretraining") or about.get(IMPORTED) or {}


def command_of(about: dict[str, Any]) -> str:
    """Name the command that a run is of, of what its checkpoint or ledger says of it."""
    if "pretraining" in about:
        return "pretrain"
    if IMPORTED in about:
        return MODEL_IMPORT
    # A deployment's settings are recorded under the name of a simulation's, but have no data.
    return "simulate" if "data" in settings_in(about) else "serve"


def why_not_private(about: dict[str, Any]) -> str:
    """Say why nothing is promised of a run without a ledger, of what its checkpoint says of it."""
    if IMPORTED in about:
        return OF_A_PUBLISHER
    return _LEDGER_MISSING if settings_in(about).get("privacy", "none") != "none" else NOTHING_PROMISED


def as_records(ancestry: Sequence[Phase]) -> list[dict[str, Any]]:
    """Make JSON-able records, which `recorded_ancestry` reads."""
    records = [phase._asdict() for phase in ancestry]
    may_lack = ("claim", "relevance", "vocabulary")
    return [
        {name: value for name, value in record.items() if name not in may_lack or value is not None}
        for record in records
    ]
