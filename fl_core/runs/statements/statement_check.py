"""Whether what a release's statement claims follows from the plan that it names, without the run."""

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.privacy.accounting.delta import check_delta
from fedlm.fl_core.privacy.origins.ancestry import (
    NOT_PRIVATE,
    NOTHING_PROMISED,
    REPEATABLE,
    TUNING_FIELD,
    WITHOUT_LEDGER,
    Phase,
    as_records,
)
from fedlm.fl_core.privacy.origins.publisher_claims import claims_as_json, not_private_with_claims
from fedlm.fl_core.privacy.origins.vocabulary_origin import VocabularyOrigin
from fedlm.fl_core.privacy.promise.counts.claimed_counts import claimed_counts, counts_of_run, written_anew
from fedlm.fl_core.privacy.promise.guarantee import Guarantee
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.statement import Statement, state_plan
from fedlm.fl_core.runs.statements.published_statement import (
    DATA_FIELD,
    FINGERPRINTS,
    as_planned,
    describe,
    whole_record,
)
from fedlm.fl_core.runs.statements.statement_reading import check_size, plain, shortened

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


def check_statement(record: dict[str, Any]) -> Checked:
    """Recompute a statement from its plan, and from what it says of what came before, and compare every field.

    Raises:
      ConfigurationError: the plan, or what came before, is none that there can be, or too large to be checked.
    """
    try:
        return _checked(record)
    except ConfigurationError as error:
        # It may quote the file.
        raise ConfigurationError(plain(str(error))) from error
    except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"the plan, or what it says of what came before, is none that there can be ({type(error).__name__}: "
            f"{shortened(str(error))}); give the statement.json of a release"
        ) from error


def _checked(record: dict[str, Any]) -> Checked:
    if record["plan"] is None:
        return Checked(tuple(_differences(record, _without_plan(record), "")), None, None)
    check_size(record)
    plan, delta = PrivacyPlan.from_json(record["plan"]), record["delta"]
    check_delta(delta)
    data = record[DATA_FIELD]
    found = state_plan(plan, delta, _about(record))
    if found.total is None and record["private"]:
        return Checked((f"private is true, but nothing can be promised: {'; '.join(found.not_private)}",), None, delta)
    if found.total is not None and not record["private"]:
        return Checked(("private is false, but from the plan follows true",), None, delta)
    findings = [*_numbers_that_differ(record, found), *_counts_that_differ(record)]
    if not findings:
        vocabulary = found.counts.vocabulary.as_json() | {"tokenizer": record["vocabulary"]["tokenizer"]}
        expected = _written(describe(_as_claimed(found, record), plan, delta, data), record, vocabulary)
        findings = list(_differences(record, expected, ""))
    return Checked(tuple(findings), None if found.total is None else found.total.epsilon, delta)


def _written(stated: dict[str, Any], record: dict[str, Any], vocabulary: dict[str, Any]) -> dict[str, Any]:
    """Write what is stated as a release does, with the fields of the record that follow from nothing."""
    whole = whole_record(stated, {name: record[name] for name in _OF_MODEL}, vocabulary)
    written: dict[str, Any] = json.loads(json_text(whole | {"written_by": record["written_by"]}))
    return written


def _without_plan(record: dict[str, Any]) -> dict[str, Any]:
    """Make the statement of a run without a ledger."""
    phases, reasons = [Phase(**phase) for phase in _about(record)["ancestry"]], record["not_private_because"]
    vocabulary = VocabularyOrigin.from_json(_with_fingerprints(record["vocabulary"])).as_json()
    stated = {
        "private": False,
        "plan": None,
        "delta": None,
        DATA_FIELD: None,
        "privacy": not_private_with_claims(NOT_PRIVATE, phases),
        "privacy_guarantee": None,
        **claims_as_json(phases, private=False),
        "ancestry": as_records(phases),
        "not_private_because": [next((one for one in WITHOUT_LEDGER if [one] == reasons), NOTHING_PROMISED)],
    }
    return _written(stated, record, vocabulary | {"tokenizer": record["vocabulary"]["tokenizer"]})


def _about(record: dict[str, Any]) -> dict[str, Any]:
    """Make again what the run's ledger says, as far as its statement follows from that."""
    ancestry = [_with_fingerprints(phase) | {"parameters_sha256": ""} for phase in record["ancestry"]]
    about = {
        "training_data_sha256": record[DATA_FIELD],
        "ancestry": as_records([as_planned(written_anew(Phase(**phase))) for phase in ancestry]),
        TUNING_FIELD: record.get(TUNING_FIELD),
        **counts_of_run(record),
        "experiment": {"noise_seed": "experiment"} if REPEATABLE in record["not_private_because"] else {},
    }
    return _with_fingerprints(about)


def _with_fingerprints(record: Any) -> Any:
    """Take names of texts for their fingerprints, at any depth."""
    if isinstance(record, dict):
        return {_FINGERPRINT_OF.get(name, name): _with_fingerprints(one) for name, one in record.items()}
    return [_with_fingerprints(one) for one in record] if isinstance(record, list) else record


def _numbers_that_differ(record: dict[str, Any], found: Statement) -> Iterator[str]:
    for place, guarantee in (("privacy_guarantee", found.total), ("guarantee_of_this_run_alone", found.own)):
        if guarantee is None or record.get(place) is None:
            continue
        ours = guarantee.as_json()
        for name in (*_UPPER, *_BESIDE):
            yield from _number(f"{place}.{name}", record[place].get(name), ours[name], name in _UPPER)


def _counts_that_differ(record: dict[str, Any]) -> Iterator[str]:
    """Hold private counts to the noise that they name."""
    for place, claimed, least in claimed_counts(record):
        for name, value in least.items():
            if claimed[name] < value * (1 - _ROUNDING):
                yield f"{place}.{name} is {claimed[name]!r}, but its noise needs {value!r}: the statement claims less"


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
            inner = f"{place}.{plain(name)}".lstrip(".")
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
        yield from (f"{place} lacks {shortened(repr(line))}" for line in lacking)
        yield from (f"{place} has {shortened(repr(line))}, which does not follow" for line in surplus)
        if claimed != expected and not lacking and not surplus:
            yield f"{place} has its lines in another order, or one of them twice"
    elif isinstance(claimed, list) and isinstance(expected, list) and len(claimed) == len(expected):
        for number, pair in enumerate(zip(claimed, expected, strict=True)):
            yield from _differences(*pair, f"{place}.{number}")
    elif claimed != expected or isinstance(claimed, bool) is not isinstance(expected, bool):
        yield f"{place} is {_said(claimed)}, but from the plan follows {_said(expected)}"


def _said(value: Any) -> str:
    return "nothing" if value is None else shortened(repr(value))
