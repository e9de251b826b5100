"""The statement of a release: one record, that people read as a page and programs by its schema."""

import json
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from fedlm.fl_core.privacy.origins.ancestry import (
    NOT_PRIVATE,
    Phase,
    as_records,
    recorded_ancestry,
    why_not_private,
)
from fedlm.fl_core.privacy.origins.publisher_claims import claims_as_json, not_private_with_claims
from fedlm.fl_core.privacy.origins.vocabulary_origin import TEXT_FIELD
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.promise.selection.tuning_record import law_of
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.statement import Statement, state_plan

KIND, VERSION = "fedlm privacy statement", 1
DATA_FIELD = "training_data"
FINGERPRINTS = {"training_data_sha256": DATA_FIELD, TEXT_FIELD: "text"}
"""Fields that hold a fingerprint of text, by the fields that have a name in its place in a statement, as `text 1`."""
_OF_A_RUN = ("parameters_sha256", "ledger")  # of trainings before it: made of the text's fingerprint too

WITHHELD = (
    "how many clients and examples took part in each round, and who; how often, and how close together, one did",
    "bytes and tokens that were sent and trained on",
    "updates that were dropped because they were not finite, and whether and when the run counted as diverged",
    "training losses, norms of updates and gradients, and how many were clipped",
    "scores on held-out and test clients; nothing is promised to these people",
    "what clients keep to themselves, where they keep anything: layers that stay with people",
    "times, interruptions and restarts",
    "the state of the noise and of the optimizer, and the secret of the noise",
)
"""What stays in the folder of the run, in words."""
OPERATOR = (
    "everything that is withheld here, as it was counted, without noise",
    "in a simulation or in central training, all text; in a deployment, each client's update before it is added",
    "the secret of the noise, with which the noise can be taken away",
)
"""What whoever ran the training has seen, in words."""
ACCOUNTANT = (
    "all releases are composed by one accountant: those of bounded participation as one Gaussian mechanism (Balle and "
    "Wang 2018), noise of clients by Renyi divergences (Agarwal et al. 2021, Kairouz et al. 2021), sampled ones by "
    "their privacy loss distributions, those of bins and of a min-separation by Monte Carlo, whose epsilons are added, "
    "a private selection by Renyi divergences (Papernot and Steinke 2022); epsilon "
    "is an upper bound"
)
PLANNED = (
    "epsilon is that of all planned rounds, at least what was spent, since how many ran may depend on the models that "
    "were released",
    "what was fixed beforehand is public: the settings, and with them the order of magnitude of how many take part",
)


@cache
def statement_schema() -> dict[str, Any]:
    """Read the JSON schema of the record."""
    return json.loads(files(__package__).joinpath("statement_schema.json").read_text("utf-8"))


def state_release(about: dict[str, Any], ledger: PrivacyLedger | None) -> dict[str, Any]:
    """State what all planned rounds of a run spend, which `about` describes, without the names of folders."""
    nameless = [
        as_planned(phase)._replace(folder=f"run {number} of its history")
        for number, phase in enumerate(recorded_ancestry(about), start=1)
    ]
    if ledger is None:
        return {
            "private": False,
            "plan": None,
            "delta": None,
            DATA_FIELD: None,
            "privacy": not_private_with_claims(NOT_PRIVATE, nameless),
            "privacy_guarantee": None,
            **claims_as_json(nameless, private=False),
            "ancestry": as_records(nameless),
            "not_private_because": [why_not_private(about)],
        }
    statement = state_plan(ledger.plan, ledger.delta, about | {"ancestry": as_records(nameless)})
    return describe(statement, ledger.plan, ledger.delta, about.get("training_data_sha256"))


def describe(statement: Statement, plan: PrivacyPlan, delta: float, training_data: str | None) -> dict[str, Any]:
    """Write down a statement, and all that it follows from."""
    # The epsilon of a run that nobody had chosen is no property of one that was.
    alone = statement.total is not None and law_of(statement.tuning) is None
    return {
        "private": statement.total is not None,
        "plan": plan.as_json(),
        "delta": delta,
        DATA_FIELD: training_data,
        **statement.as_json(),
        "guarantee_of_this_run_alone": statement.own.as_json() if alone else None,
    }


def whole_record(stated: dict[str, Any], of_model: dict[str, Any], vocabulary: dict[str, Any]) -> dict[str, Any]:
    """Add to what is stated which form it has, whose it is, and what every statement says; without fingerprints of
    text, by which whoever knows all but one client's text could find that one's out."""
    record = {
        "kind": KIND,
        "version": VERSION,
        "written_by": f"fedlm {version('fedlm')}",
        **of_model,
        **stated,
        "ancestry": [
            {name: value for name, value in phase.items() if name not in _OF_A_RUN} for phase in stated["ancestry"]
        ],
        "accountant": ACCOUNTANT,
        "stated": list(PLANNED),
        "vocabulary": vocabulary,
        "seen_by_the_operator": list(OPERATOR),
        "withheld": list(WITHHELD),
    }
    names: dict[str, str] = {}
    return _with_named_texts(record, lambda text: names.setdefault(text, f"text {len(names) + 1}"))


def as_planned(phase: Phase) -> Phase:
    """Take a training for as long as it was planned: how long it went on may depend on its text. Without a plan nothing
    fixed its length beforehand, and none is told."""
    if phase.plan is None:
        return phase._replace(steps=0)
    return phase._replace(steps=phase.plan["rounds"], generations=[[0, phase.plan["rounds"]]])


def _with_named_texts(record: Any, name_of: Callable[[str], str]) -> Any:
    """Put names in place of fingerprints of text, at any depth: which are the same is all that a statement needs."""
    if isinstance(record, dict):
        named = {}
        for name, value in record.items():
            field = FINGERPRINTS.get(name, name)
            is_text = field in FINGERPRINTS.values() and isinstance(value, str)
            named[field] = name_of(value) if is_text else _with_named_texts(value, name_of)
        return named
    if isinstance(record, list | tuple):
        return [_with_named_texts(value, name_of) for value in record]
    return record
