"""Reads the statement of a release that anybody may have written: it fits the schema, and can be checked in minutes."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.origins.vocabulary_origin import ORIGIN_FIELD
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.runs.statements.published_statement import statement_schema

_SHOWN = 90  # characters
_MOST_BYTES, _MOST_COUNT = 1 << 24, 1 << 53
_MOST_TRAININGS, _MOST_ROUNDS, _MOST_WORDS = 50, 10_000_000, 1_000_000
_MOST_WORK = 1e11  # additions, which take minutes


def read_statement(path: Path) -> dict[str, Any]:
    """Read a statement that fits the schema.

    Raises:
      ConfigurationError: the file holds none; the message names the field.
    """
    import jsonschema

    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
        record = json.loads(
            content.decode("utf-8"),
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_count,
            object_pairs_hook=_each_once,
        )
        validator = jsonschema.Draft202012Validator(statement_schema())
        found = jsonschema.exceptions.best_match(validator.iter_errors(record))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{path}: cannot be read as JSON ({shortened(str(error))}); give the statement.json of a release"
        ) from error
    if found is not None:
        place = ".".join(plain(str(one)) for one in found.absolute_path) or "the file"
        raise ConfigurationError(
            f"{path}: no statement of a release: {place}: {shortened(found.message)}; give the statement.json of a "
            "release"
        )
    return record


def check_size(record: dict[str, Any]) -> None:
    """Refuse a statement whose check would take hours, or more memory than there is. Raises ConfigurationError."""
    trainings = [record, *record["ancestry"]]
    plans = [PrivacyPlan.from_json(one["plan"]) for one in trainings[: _MOST_TRAININGS + 1] if one["plan"] is not None]
    work = sum(MECHANISMS[plan.mechanism].work(plan) for plan in plans)
    numbers: dict[str, tuple[float, float]] = {
        "trainings before this one": (len(trainings) - 1, _MOST_TRAININGS),
        "rounds": (max(plan.rounds for plan in plans), _MOST_ROUNDS),
        "words of one client in a private vocabulary": (max(_words(trainings), default=0), _MOST_WORDS),
        "additions that the sensitivity of its plans takes": (work, _MOST_WORK),
    }
    for what, (found, most) in numbers.items():
        if found > most:
            raise ConfigurationError(f"too large to be checked: {found:,.0f} {what}, but {most:,.0f} at most")


def _words(trainings: list[dict[str, Any]]) -> Iterator[int]:
    origins = [one.get(name) for one in trainings for name in (ORIGIN_FIELD, "vocabulary")]
    for origin in [*origins, *trainings[0].get("vocabularies", [])]:
        yield int(((origin or {}).get("guarantee") or {}).get("words_per_client", 0))


def plain(text: str) -> str:
    """Write a text so that a terminal takes nothing of it for commands, or for another line."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def shortened(text: str) -> str:
    """Cut a text where it is long."""
    return plain(text) if len(text) <= _SHOWN else f"{plain(text[: _SHOWN - 4])} ..."


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _count(text: str) -> int:
    if not -_MOST_COUNT < (value := int(text)) < _MOST_COUNT:
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{twice!r} is there twice")
    return record
