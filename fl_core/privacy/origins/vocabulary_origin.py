"""Where a vocabulary comes from, and what it tells of the people whose text made it.

A vocabulary is published with every model: clients get it, and nobody can use the model without it. So its origin is
part of what is promised of a model.
"""

import dataclasses
import json
import math
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up

Kind = Literal["training data", "given", "public", "private"]
TOKENIZER_FILE = "tokenizer.json"
"""The tokenizer in a data set's folder."""
STORE_HEADER = "store.json"
"""The file beside a data set's tokenizer that says where the vocabulary comes from, under `ORIGIN_FIELD`."""
ORIGIN_FIELD = "vocabulary_origin"
TEXT_FIELD = "text_sha256"
"""In what is said of a vocabulary, or of relevances: fingerprint of the training clients whose text they were made of;
never published, as no fingerprint of text is."""

UNIT = "client: all data of one client"
PACKED = "one packed sequence"
"""With which the words on a unit of privacy begin that may hold data of several clients; see `may_be_of_several`."""
ADJACENCY = "add-or-remove: all data of one client is added to the rest, or removed from it"
MECHANISM = "words or items are counted with Gaussian noise, and those whose count is above a threshold are kept"
ASSUMPTIONS = (
    "the vocabulary comes from one import: another import of the same data makes another, and spends as much again",
    "only the operator sees the counts, their noise and what is below the threshold",
    "nobody looked at the data to choose the settings of the import or the characters that every vocabulary has "
    "(printable ASCII)",
)
AS_FIXED = (
    "the guarantee takes the vocabulary as fixed, but one client more or less might change it, and with it the tokens "
    "of others' data (for recommendation, also which items and users are kept)"
)
"""Of a vocabulary that is not covered."""
OF_ANOTHER = "one unit here was at most one client in the data set that the vocabulary was made with"
"""Beside `ASSUMPTIONS`, of a private vocabulary that was taken from another data set."""


@dataclass(frozen=True)
class PrivateVocabulary:
    """What a vocabulary that was chosen with differential privacy spends of each client's privacy.

    Attributes:
      epsilon: at `delta`, of the vocabulary alone.
      delta: of it, `threshold_delta` included.
      noise_multiplier: standard deviation of each count's noise, in units of the L2 norm of what a client adds to all
        counts at most.
      threshold: which a count with its noise must reach, in the same units.
      threshold_delta: probability, at most, that a word which no other client has reaches the threshold.
      words_per_client: distinct words of one client that are counted at most.
    """

    epsilon: float
    delta: float
    noise_multiplier: float
    threshold: float
    threshold_delta: float
    words_per_client: int

    def __post_init__(self) -> None:
        positive = (self.epsilon, self.noise_multiplier, self.threshold, self.words_per_client)
        if not all(math.isfinite(value) and value > 0 for value in positive):
            raise ConfigurationError(f"a private vocabulary's numbers must be positive and finite, found {self}")
        if not 0 < self.threshold_delta < self.delta < 1:
            raise ConfigurationError(
                f"a private vocabulary's threshold_delta ({self.threshold_delta}) must lie below its delta "
                f"({self.delta}), and that below 1"
            )


@dataclass(frozen=True)
class VocabularyOrigin:
    """Where a vocabulary comes from.

    Attributes:
      kind: `training data`: made of the data that is trained on, without privacy; `given`: brought by the user, who
        has not said more of it; `public`: brought by the user, who says that it holds nothing of anybody; `private`:
        made of the training data with differential privacy.
      private: what that spent; None for the other kinds.
      recorded: whether that is recorded; what is not counts as made of the training data.
      of_another: whether it was made with another data set, from which it was taken.
      text: fingerprint of the training clients whose text it was made of, where that is recorded of one that was given;
        whatever its user says of it.
      unit_of_several: whether the unit of privacy that it is stated for may hold data of several clients, so that what
        is promised to each of these covers no unit.
      of_users: of a private one, whether the data set that it was made with records that its clients are users. Of
        another's documents, or of what is not recorded, one user here may have been many clients there.
      release: of a private one, the random name of the release of noise that made it; None for the other kinds. Two
        releases about the same people count twice, also where what they made is equal.
    """

    kind: Kind
    private: PrivateVocabulary | None = None
    recorded: bool = True
    of_another: bool = False
    text: str | None = dataclasses.field(default=None, compare=False)
    unit_of_several: bool = False
    of_users: bool = False
    release: str | None = None

    def __post_init__(self) -> None:
        private = (self.kind == "private", self.private is not None, isinstance(self.release, str))
        if self.kind not in get_args(Kind) or len(set(private)) > 1:
            raise ConfigurationError(
                f"not the origin of a vocabulary: {self.kind!r} with {self.private}, of the release {self.release!r}"
            )

    @property
    def covered(self) -> bool:
        """Whether a guarantee for a model holds for its vocabulary too."""
        if self.kind != "private":
            return self.kind == "public"
        return not self.unit_of_several and (self.of_users or not self.of_another)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a promise rests on that counts what this vocabulary has spent."""
        if self.private is None or not self.covered:
            return ()
        return (*ASSUMPTIONS, OF_ANOTHER) if self.of_another else ASSUMPTIONS

    def seen_from(self, training_data: Collection[str | None]) -> "VocabularyOrigin":
        """Take one that was called public for made of the training data, where it is recorded to be that of training
        clients with one of these fingerprints."""
        if self.kind != "public" or self.text is None or self.text not in training_data:
            return self
        return dataclasses.replace(self, kind="training data", of_another=True)

    def stated_for(self, unit: str) -> "VocabularyOrigin":
        """Take one that was made with privacy for each client for not covered, where a unit of privacy may hold text of
        several."""
        several = self.kind == "private" and may_be_of_several(unit)
        return dataclasses.replace(self, unit_of_several=several)

    def sentence(self) -> str:
        """Say whether a guarantee covers the vocabulary, and why."""
        if not self.covered:
            return f"VOCABULARY NOT COVERED: {self._made()}; {AS_FIXED}"
        if self.private is None:
            return "the vocabulary is public: the user has said that it holds nobody's data"
        multiplier = f"{self.private.noise_multiplier:.6g}"
        return f"the vocabulary is covered: {self._made()}; {MECHANISM}, noise multiplier {multiplier}"

    def _made(self) -> str:
        """Say what it was made of, and why that is not covered where it is not."""
        where = " of another data set" if self.of_another else ""
        if self.kind == "given":
            return "it was given, and nobody has said that it is public; it may show what only a few people have"
        if self.private is None:
            known = "" if self.recorded else " (there is no record of it, so fedlm assumes this)"
            without = f"it was made from the training data{where} without privacy{known}"
            return f"{without}, and may show what only one client has"
        made = (
            f"it was made from the training data{where}, with (epsilon = {rounded_up(self.private.epsilon)}, "
            f"delta = {rounded_up(self.private.delta)})-differential privacy for each client"
        )
        if self.unit_of_several:
            return f"{made}, but {PACKED} may hold data of several clients"
        return made if self.covered else f"{made} there, but one user here may have been many clients there"

    def as_json(self) -> dict[str, Any]:
        """Make a JSON-able dictionary, which `from_json` takes, with what a reader needs to judge it."""
        record: dict[str, Any] = {"kind": self.kind, "covered": self.covered}
        if self.of_another:
            record["of_another"] = True
        if not self.recorded:
            record["recorded"] = False
        if self.unit_of_several:
            record["unit_of_several"] = True
        if self.of_users:
            record["of_users"] = True
        if self.text is not None:
            record[TEXT_FIELD] = self.text
        if self.private:
            record |= {"release": self.release, **guarantee_as_json(self.private, MECHANISM, self.assumptions)}
        return record | {"statement": self.sentence()}

    @staticmethod
    def from_json(record: dict[str, Any] | None) -> "VocabularyOrigin":
        """Undo `as_json`; None, where nothing is recorded, is `UNKNOWN`.

        Raises:
          ConfigurationError: it is not such a record.
        """
        if record is None:
            return UNKNOWN
        try:
            private = record.get("guarantee")
            return VocabularyOrigin(
                record["kind"],
                None if private is None else PrivateVocabulary(**private),
                recorded=record.get("recorded", True),
                of_another=record.get("of_another", False),
                text=record.get(TEXT_FIELD),
                unit_of_several=record.get("unit_of_several", False),
                of_users=record.get("of_users", False),
                release=record.get("release"),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"not the origin of a vocabulary: {record!r} ({error})") from error


def guarantee_as_json(private: Any, mechanism: str, assumptions: Sequence[str]) -> dict[str, Any]:
    """Say, JSON-able, what counts with noise spend of each client's privacy, by which mechanism, and what has to hold;
    `private` is a dataclass of the numbers."""
    return {
        "guarantee": dataclasses.asdict(private),
        "unit": UNIT,
        "adjacency": ADJACENCY,
        "mechanism": mechanism,
        "assumptions": list(assumptions),
    }


def origin_of_import(private: PrivateVocabulary | None) -> VocabularyOrigin:
    """Say where a vocabulary comes from that an import makes of its text: with noise, as `private` says, which makes a
    release of its own, or without."""
    if private is None:
        return VocabularyOrigin("training data")
    return VocabularyOrigin("private", private, release=secrets.token_hex(16))


def may_be_of_several(unit: str) -> bool:
    """Say whether a unit of privacy, in a statement's words, may hold data of several clients: texts are packed end to
    end, whoever wrote them."""
    return unit.split(": ", 1)[-1].startswith(PACKED)


UNKNOWN = VocabularyOrigin("training data", recorded=False)
"""Of a vocabulary whose data set says nothing of it."""
GIVEN = VocabularyOrigin("given")
"""Of a vocabulary that lies in no data set."""


def tokenizer_file(path: Path) -> Path:
    """Find the file of a tokenizer that is named by its file, or by the folder of a data set or run that has it."""
    return path / TOKENIZER_FILE if path.is_dir() else path


def origin_beside(tokenizer: Path, fingerprint: str) -> VocabularyOrigin | None:
    """Read what the data set says that a tokenizer's file lies in; None where it lies in no data set of that tokenizer.

    Args:
      tokenizer: the file.
      fingerprint: of the tokenizer, by which the data set's own is known.

    Raises:
      ConfigurationError: the data set's record of it is damaged.
    """
    header = _header(tokenizer.parent)
    return None if header.get("tokenizer_fingerprint") != fingerprint else _origin_in(tokenizer.parent, header)


def origin_of_data(data: Path) -> VocabularyOrigin:
    """Read where the vocabulary of the data set in a folder comes from. Raises ConfigurationError where the record is
    damaged."""
    return _origin_in(data, _header(data))


def _header(data: Path) -> dict[str, Any]:
    try:
        header = json.loads((data / STORE_HEADER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return header if isinstance(header, dict) else {}


def _origin_in(data: Path, header: dict[str, Any]) -> VocabularyOrigin:
    try:
        origin = VocabularyOrigin.from_json(header.get(ORIGIN_FIELD))
        if origin.kind == "private" and not origin.of_another:
            origin = dataclasses.replace(origin, of_users=header.get("without_users") is False)
        if origin.text is None and origin.kind in ("training data", "private") and not origin.of_another:
            return dataclasses.replace(origin, text=header.get("splits", {}).get("train", {}).get("sha256"))
        return origin
    except ConfigurationError as error:
        raise ConfigurationError(f"{data / STORE_HEADER}: {ORIGIN_FIELD}: {error}. Import the data again.") from error
