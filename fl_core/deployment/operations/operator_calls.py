"""What people may ask of a server, and which roles may ask it."""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from fedlm.fl_core.deployment.security.audit_log import AuditLog
from fedlm.fl_core.deployment.security.people import Person, Role


class Call(enum.StrEnum):
    """Every call that needs a token where a server knows people by tokens."""

    SHOW_STATUS = "status.show"
    SHOW_METRICS = "metrics.show"
    SHOW_RUN = "run.show"
    SHOW_LOG = "run.logs"
    SUBMIT = "run.submit"
    PAUSE = "run.pause"
    RESUME = "run.resume"
    STOP = "run.stop"
    APPROVE = "run.approve"
    READ_AUDIT = "audit.export"
    REVOKE = "client.revoke"


_ANY_ROLE = frozenset(Role)
_MAY = {
    Call.SHOW_STATUS: _ANY_ROLE,
    Call.SHOW_METRICS: _ANY_ROLE,
    Call.SHOW_RUN: _ANY_ROLE,
    Call.SHOW_LOG: _ANY_ROLE,
    Call.SUBMIT: frozenset({Role.OPERATOR}),
    Call.PAUSE: frozenset({Role.OPERATOR}),
    Call.RESUME: frozenset({Role.OPERATOR}),
    Call.STOP: frozenset({Role.OPERATOR}),
    Call.APPROVE: frozenset({Role.PRIVACY_APPROVER}),
    Call.READ_AUDIT: frozenset({Role.AUDITOR}),
    Call.REVOKE: frozenset({Role.KEY_ADMINISTRATOR}),
}


class FoundCall(NamedTuple):
    """A call of a path."""

    call: Call
    on: str  # what it is about: the name of a run, say
    act: Callable[[Person, bytes], Any]  # does it for somebody, with a body, and answers JSON-able; raises UserError


class OperatorCalls(Protocol):
    """What people may ask of a process beside what they are shown. Any thread may ask."""

    @property
    def audit(self) -> AuditLog:
        """Where it is kept who asked for what."""
        ...

    def find(self, method: str, path: str) -> FoundCall | None:
        """Find the call of a path; None where there is none."""
        ...


def refusal(person: Person, call: Call) -> str | None:
    """Say why a person may not make a call; None where they may."""
    needed = _MAY[call]
    if needed & person.roles:
        return None
    found = ", ".join(sorted(person.roles)) or "none"
    return f"{call} needs the role {' or '.join(sorted(needed))}; {person.name} has {found}"


def is_audited(call: Call) -> bool:
    """Say whether the audit log has a call that is granted, too, as it has all that are refused."""
    return _MAY[call] != _ANY_ROLE
