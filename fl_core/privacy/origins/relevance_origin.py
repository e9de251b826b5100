"""How often each token is relevant to a unit, and what that tells of the people in whose text it was counted.

Models with re-attention have these numbers among their constants and do not work without them, so the numbers go out
with every model. Their origin is part of a model's promise.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.fl_core.privacy.origins.vocabulary_origin import TEXT_FIELD, guarantee_as_json

Kind = Literal["training data", "public", "private"]
Counted = Literal["example", "client"]
"""The unit in which tokens occur or not: one sequence, or all text of a client."""
RELEVANCE_FIELD = "relevance_origin"
"""Under which checkpoints, ledgers and statements say where the relevances of a run come from."""
MECHANISM = (
    "each client adds, for each token, the share of its units that contain it; what a client adds has a bounded norm, "
    "and the sum gets Gaussian noise"
)
ASSUMPTIONS = (
    "the relevances of tokens come from one count: another count of the same data gives others, and spends as much "
    "again",
    "only the operator sees the counts of relevances and their noise, and nobody looked at the data to choose their "
    "settings",
)
_FORMAT = "fedlm relevance 1"
_FIELDS = ("format", "vocabulary_sha256", "training_data_sha256", "unit", "length", "packing", "relevance")


@dataclass(frozen=True)
class PrivateRelevance:
    """What relevances that were counted with differential privacy spend of each client's privacy.

    Attributes:
      epsilon: at `delta`, of the relevances alone.
      delta: of it.
      noise_multiplier: standard deviation of each count's noise, in units of the L2 norm of what a client adds to all
        counts at most.
      tokens_per_unit: distinct tokens of a unit that count fully; where there are more, all count for less.
    """

    epsilon: float
    delta: float
    noise_multiplier: float
    tokens_per_unit: int

    def __post_init__(self) -> None:
        positive = (self.epsilon, self.noise_multiplier, self.tokens_per_unit)
        if not all(math.isfinite(value) and value > 0 for value in positive) or not 0 < self.delta < 1:
            raise ConfigurationError(f"the numbers of private relevances must be positive and finite, found {self}")


@dataclass(frozen=True)
class RelevanceOrigin:
    """Where relevances come from.

    Attributes:
      kind: `training data`: counted in data of the people who are trained on, without privacy; `public`: the user says
        that they hold nothing of anybody; `private`: counted in the training data with differential privacy.
      sha256: by which one count is known wherever it is used; see `fingerprint_of_count`.
      private: what that spent; None for the other kinds.
      text: fingerprint of the training clients in whose text they were counted, where that is recorded, whatever their
        user says of it.
    """

    kind: Kind
    sha256: str
    private: PrivateRelevance | None = None
    text: str | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind) or (self.kind == "private") != (self.private is not None):
            raise ConfigurationError(f"not the origin of relevances: {self.kind!r} with {self.private}")

    @property
    def not_private(self) -> str | None:
        """Why nothing can be promised of a model with these relevances; None where something can."""
        if self.kind != "training data":
            return None
        return "its attention uses relevances of tokens that were counted in the data without privacy"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a promise rests on that counts what these relevances have spent, or that they have spent nothing."""
        if self.private is not None:
            return ASSUMPTIONS
        return (self.sentence(),) if self.kind == "public" else ()

    def seen_from(self, training_data: Collection[str | None]) -> "RelevanceOrigin":
        """Take some that were called public for counted in the training data, where it is recorded that they were, of
        training clients with one of these fingerprints."""
        if self.kind != "public" or self.text is None or self.text not in training_data:
            return self
        return dataclasses.replace(self, kind="training data")

    def sentence(self) -> str:
        """Say whether a guarantee covers them, and why."""
        if self.private is not None:
            return (
                "the relevances of tokens are covered: they were counted in the training data with (epsilon = "
                f"{rounded_up(self.private.epsilon)}, delta = {rounded_up(self.private.delta)})-differential privacy "
                f"for each client; {MECHANISM}, noise multiplier {self.private.noise_multiplier:.6g}"
            )
        if self.kind == "public":
            return "the relevances of tokens are public: the user has said that they hold nobody's data"
        return "RELEVANCES NOT COVERED: they were counted in the data without privacy"

    def as_json(self) -> dict[str, Any]:
        """Make a JSON-able dictionary, which `from_json` takes, with what a reader needs to judge it."""
        record: dict[str, Any] = {"kind": self.kind, "sha256": self.sha256}
        if self.text is not None:
            record[TEXT_FIELD] = self.text
        if self.private is not None:
            record |= guarantee_as_json(self.private, MECHANISM, ASSUMPTIONS)
        return record | {"statement": self.sentence()}

    @staticmethod
    def from_json(record: dict[str, Any] | None) -> "RelevanceOrigin | None":
        """Undo `as_json`; None of a run without re-attention.

        Raises:
          ConfigurationError: it is not such a record.
        """
        if record is None:
            return None
        try:
            private = record.get("guarantee")
            private = None if private is None else PrivateRelevance(**private)
            return RelevanceOrigin(record["kind"], record["sha256"], private, record.get(TEXT_FIELD))
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"not the origin of relevances: {record!r} ({error})") from error


def counted_in_the_open(record: dict[str, Any] | None, people: Collection[str]) -> str | None:
    """Say why nothing is promised of a training to people whose text has one of these fingerprints, by the record of
    its relevances; None where these are no reason."""
    origin = RelevanceOrigin.from_json(record)
    if origin is None or origin.private is not None or origin.text not in people:
        return None
    return "its relevances of tokens were counted without privacy in data of the same people"


class Relevance(NamedTuple):
    """The relevances of a vocabulary's tokens, as a file has them.

    Attributes:
      values: of each token id, the probability that it occurs in a unit, above 0 and at most 1.
      origin: where they come from.
      vocabulary: fingerprint of the tokenizer.
      training_data: fingerprint of the training clients' text that they were counted in; None where none was.
      unit: see `Counted`.
      length: tokens of a sequence.
      packing: `packed` or `none`, as `fedlm pretrain` makes sequences.
      name: a random one of a private count; None of others.
    """

    values: tuple[float, ...]
    origin: RelevanceOrigin
    vocabulary: str
    training_data: str | None
    unit: Counted
    length: int
    packing: str
    name: str | None = None

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all. Raises DiskError where it cannot be written."""
        record = {
            "format": _FORMAT,
            "vocabulary_sha256": self.vocabulary,
            "training_data_sha256": self.training_data,
            "unit": self.unit,
            "length": self.length,
            "packing": self.packing,
            **({} if self.name is None else {"count": self.name}),
            RELEVANCE_FIELD: self.origin.as_json(),
            "relevance": list(self.values),
        }
        write_atomically(path, json.dumps(record, indent=1) + "\n")


def fingerprint_of_count(
    values: tuple[float, ...], private: PrivateRelevance | None = None, count: str | None = None
) -> str:
    """Compute the SHA-256 by which a count is known: of its numbers, and of a private one of what it spent and of its
    random name, too. The numbers alone do not tell two counts apart: those of few people are all 1.

    Args:
      values: the relevances.
      private: what a private count spent.
      count: its name.
    """
    numbers = [float(value).hex() for value in values]
    if private is None:
        return hashlib.sha256(json.dumps(numbers).encode()).hexdigest()
    record = {"relevance": numbers, "guarantee": dataclasses.asdict(private), "count": count}
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def read_relevance(path: Path) -> Relevance:
    """Read a file of relevances.

    Raises:
      ConfigurationError: it is missing, or no such file; the message names the field.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path}: cannot be read as a file of relevances ({error}); give one that `fedlm data relevance` made"
        ) from error
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        raise ConfigurationError(f"{path}: has not the format {_FORMAT!r}; make one with `fedlm data relevance`")
    missing = [name for name in (*_FIELDS, RELEVANCE_FIELD) if name not in record]
    if missing:
        raise ConfigurationError(f"{path}: {missing[0]} is missing; make the file again with `fedlm data relevance`")
    found = record["relevance"]
    if not isinstance(found, list):
        raise ConfigurationError(f"{path}: relevance is {found!r}, but must be a list of a number for each token")
    for token, value in enumerate(found):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise ConfigurationError(
                f"{path}: the relevance of token {token} is {value!r}, but must be above 0, and 1 at most"
            )
    values = tuple(map(float, found))
    if record["unit"] not in get_args(Counted):
        raise ConfigurationError(f"{path}: unit is {record['unit']!r}, but must be one of {get_args(Counted)}")
    said, count = record[RELEVANCE_FIELD], record.get("count")
    if count is not None and not isinstance(count, str):
        raise ConfigurationError(f"{path}: count is {count!r}, but must be a string")
    try:
        # Which count it is follows from what the file holds, whatever it says.
        origin = RelevanceOrigin.from_json(said | {"sha256": ""})
    except (ConfigurationError, TypeError) as error:
        raise ConfigurationError(f"{path}: {RELEVANCE_FIELD}: {error}") from error
    assert origin is not None
    if origin.private is not None and count is None:
        raise ConfigurationError(
            f"{path}: count is missing, the name by which a private count is told from others with the same numbers; "
            "give the file as `fedlm data relevance` wrote it"
        )
    sha256 = fingerprint_of_count(values, origin.private, count)
    origin = dataclasses.replace(origin, sha256=sha256, text=record["training_data_sha256"])
    if origin.private is not None and said.get("sha256") != origin.sha256:
        raise ConfigurationError(
            f"{path}: its numbers, or what they have spent, are not what was counted privately, so that nothing is "
            "known of them; give the file as `fedlm data relevance` wrote it"
        )
    return Relevance(
        values=values,
        origin=origin,
        vocabulary=record["vocabulary_sha256"],
        training_data=record["training_data_sha256"],
        unit=record["unit"],
        length=record["length"],
        packing=record["packing"],
        name=count,
    )
