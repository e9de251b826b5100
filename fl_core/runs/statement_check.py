"""Whether what a release's statement claims follows from the plan that it names, without the run."""

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.privacy.accounting.delta import check_delta
from fedlm.fl_core.privacy.origins.ancestry import TUNING_FIELD, Phase, as_records
from fedlm.fl_core.privacy.origins.relevance_origin import RELEVANCE_FIELD, RelevanceOrigin
from fedlm.fl_core.privacy.origins.vocabulary_origin import ORIGIN_FIELD, VocabularyOrigin
from fedlm.fl_core.privacy.promise.guarantee import Guarantee
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.statement import Statement, state_plan
from fedlm.fl_core.runs.published_statement import (
    DATA_FIELD,
    FINGERPRINTS,
    as_planned,
    describe,
    statement_schema,
    whole_record,
)

_OF_MODEL = ("model", "parameters_sha256")
UNCHECKED = (
    *("written_by", *_OF_MODEL, "vocabulary.tokenizer"),
    *("ancestry.*.plan.unit", "ancestry.*.not_private", "tuning.selection.*"),
)
"""Fields that follow from nothing else in a statement, by their place: of a unit before, and of a reason, the words
alone; of a selection, all but the distribution."""
_FINGERPRINT_OF = {name: field for field, name in FINGERPRINTS.items()}
_ROUNDING = 1e-9  # by which another machine's arithmetic may differ
_LOOSER = 0.01  # by which an accountant may be looser than this one, as a part
_UPPER, _BESIDE = ("epsilon", "rho", "sensitivity"), ("epsilon_lower", "epsilon_by_rdp")
_SHOWN = 90  # characters


class Checked(NamedTuple):
    """What came out.

    Attributes:
      findings: what is claimed and does not follow, one sentence each.
      epsilon: that follows from the plan; None where nothing is promised.
      delta: at which it is stated; None of a statement without a plan.
    """

    findings: tuple[str, ...]
    epsilon: float | None
    delta: float | None


def read_statement(path: Path) -> dict[str, Any]:
    """Read a statement that fits the schema.

    Raises:
      ConfigurationError: the file holds none; the message names the field.
    """
    import jsonschema

    try:
        record = json.loads(path.read_text("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_each_once)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{path}: cannot be read as JSON ({error}); give the statement.json of a release"
        ) from error
    found = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(statement_schema()).iter_errors(record))
    if found is not None:
        place = ".".join(map(str, found.absolute_path)) or "the file"
        raise ConfigurationError(
            f"{path}: no statement of a release: {place}: {_short(found.message)}; give the statement.json of a release"
        )
    return record


def check_statement(record: dict[str, Any]) -> Checked:
    """Recompute a statement from its plan, and from what it says of what came before, and compare every field.

    Of a statement that promises nothing nothing has to be compared: the schema sees to it that it claims nothing.

    Raises:
      ConfigurationError: the plan, or what came before, is none that there can be.
    """
    if record["plan"] is None or not record["private"]:
        return Checked((), None, None)
    plan, delta = PrivacyPlan.from_json(record["plan"]), record["delta"]
    check_delta(delta)
    data = record[DATA_FIELD]
    found = state_plan(plan, delta, _about(record))
    if found.total is None:
        return Checked((f"private is true, but nothing can be promised: {'; '.join(found.not_private)}",), None, delta)
    findings = [*_numbers_that_differ(record, found)]
    if not findings:
        of_model = {name: record[name] for name in _OF_MODEL}
        vocabulary = found.vocabulary.as_json() | {"tokenizer": record["vocabulary"]["tokenizer"]}
        expected = whole_record(describe(_as_claimed(found, record), plan, delta, data), of_model, vocabulary)
        expected |= {"written_by": record["written_by"]}
        findings = list(_differences(record, json.loads(json_text(expected)), ""))
    return Checked(tuple(findings), found.total.epsilon, delta)


def _about(record: dict[str, Any]) -> dict[str, Any]:
    """Make again what the run's ledger says, as far as its statement follows from that."""
    vocabularies = record.get("vocabularies") or [record[ORIGIN_FIELD]]
    ancestry = [_with_fingerprints(phase) | {"parameters_sha256": ""} for phase in record["ancestry"]]
    about = {
        "training_data_sha256": record[DATA_FIELD],
        "ancestry": as_records([as_planned(_as_written(Phase(**phase))) for phase in ancestry]),
        TUNING_FIELD: record[TUNING_FIELD],
        ORIGIN_FIELD: vocabularies[0],
        RELEVANCE_FIELD: record.get(RELEVANCE_FIELD),
    }
    return _with_fingerprints(about)


def _as_written(phase: Phase) -> Phase:
    """Write what a training says of its origins anew, from what counts of it."""
    vocabulary = None if phase.vocabulary is None else VocabularyOrigin.from_json(phase.vocabulary).as_json()
    relevance = RelevanceOrigin.from_json(phase.relevance)
    return phase._replace(vocabulary=vocabulary, relevance=None if relevance is None else relevance.as_json())


def _with_fingerprints(record: Any) -> Any:
    """Take names of texts for their fingerprints, at any depth."""
    if isinstance(record, dict):
        return {_FINGERPRINT_OF.get(name, name): _with_fingerprints(one) for name, one in record.items()}
    return [_with_fingerprints(one) for one in record] if isinstance(record, list) else record


def _numbers_that_differ(record: dict[str, Any], found: Statement) -> Iterator[str]:
    for place, guarantee in (("privacy_guarantee", found.total), ("guarantee_of_this_run_alone", found.own)):
        if guarantee is None or record[place] is None:
            continue
        ours = guarantee.as_json()
        for name in (*_UPPER, *_BESIDE):
            yield from _number(f"{place}.{name}", record[place].get(name), ours[name], name in _UPPER)


def _number(place: str, claimed: float | None, ours: float | None, upper: bool) -> Iterator[str]:
    if claimed is None or ours is None:
        if claimed is not ours:
            yield f"{place} is {_said(claimed)}, but from the plan follows {_said(ours)}"
    elif upper and claimed < ours * (1 - _ROUNDING):
        yield f"{place} is {claimed!r}, but the plan spends {ours!r}: the statement claims less than that"
    elif not ours * (1 - _LOOSER) - _ROUNDING <= claimed <= ours * (1 + _LOOSER) + _ROUNDING:
        yield f"{place} is {claimed!r}, but from the plan follows {ours!r}: it is the number of another plan"


def _as_claimed(found: Statement, record: dict[str, Any]) -> Statement:
    """Take the claimed numbers, which are as good as ours, so that sentences made of them can be compared."""
    if found.total is None:
        return found
    total = _with_numbers(found.total, record["privacy_guarantee"])
    alone = record["guarantee_of_this_run_alone"]
    return found._replace(total=total, own=found.own if alone is None else _with_numbers(found.own, alone))


def _with_numbers(guarantee: Guarantee, claimed: dict[str, Any]) -> Guarantee:
    numbers = {name: claimed[name] for name in (*_UPPER, *_BESIDE)}
    infinite = {name: math.inf for name in ("epsilon", "epsilon_lower") if numbers[name] is None}
    return dataclasses.replace(guarantee, **numbers | infinite)


def _differences(claimed: Any, expected: Any, place: str) -> Iterator[str]:
    if isinstance(claimed, dict) and isinstance(expected, dict):
        for name in dict.fromkeys([*expected, *claimed]):
            inner = f"{place}.{name}".lstrip(".")
            if name not in claimed:
                yield f"{inner} is missing"
            elif name not in expected:
                yield f"{inner} does not follow from the plan"
            else:
                yield from _differences(claimed[name], expected[name], inner)
    elif isinstance(claimed, list) and isinstance(expected, list) and all(isinstance(one, str) for one in expected):
        lacking, surplus = (
            [one for one in expected if one not in claimed],
            [one for one in claimed if one not in expected],
        )
        yield from (f"{place} lacks {_short(repr(line))}" for line in lacking)
        yield from (f"{place} has {_short(repr(line))}, which does not follow" for line in surplus)
        if claimed != expected and not lacking and not surplus:
            yield f"{place} has its lines in another order, or one of them twice"
    elif isinstance(claimed, list) and isinstance(expected, list) and len(claimed) == len(expected):
        for number, pair in enumerate(zip(claimed, expected, strict=True)):
            yield from _differences(*pair, f"{place}.{number}")
    elif claimed != expected or isinstance(claimed, bool) is not isinstance(expected, bool):
        yield f"{place} is {_said(claimed)}, but from the plan follows {_said(expected)}"


def _said(value: Any) -> str:
    return "nothing" if value is None else _short(repr(value))


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]} ..."


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        twice = next(name for name, _ in pairs if [one for one, _ in pairs].count(name) > 1)
        raise ValueError(f"{twice!r} is there twice")
    return record
