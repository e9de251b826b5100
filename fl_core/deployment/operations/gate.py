"""Lets people through to the calls that they may make, and has the audit log say so."""

import hashlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from fedlm.fedlm_client.errors import RefusedError
from fedlm.fl_core.deployment.operations.operator_calls import FoundCall, is_audited, refusal
from fedlm.fl_core.deployment.security.audit_log import AuditLog, with_short_texts
from fedlm.fl_core.deployment.security.people import LOCAL, Access, Person
from fedlm.fl_core.deployment.transport.connection_limits import network_of
from fedlm.fl_core.errors import UserError

_SECONDS_A_LINE, _LINES_A_SECOND, _REMEMBERED = 1.0, 10, 1 << 10
_LONGEST_TEXT = 200


class Asked(NamedTuple):
    """A request of somebody, at an address."""

    method: str
    path: str
    fields: dict[str, str]  # of its head, by names in lower case
    address: str
    body: bytes = b""


class NotPermittedError(UserError):
    """Who calls is known, and may not do this."""


class Gate:
    """Knows who calls, and what they may. Any thread may ask."""

    def __init__(self, access: Access | None, audit: AuditLog | None):
        """Let people in by an access, or everybody where None; without an audit log nothing is kept."""
        self._access, self._audit, self._refusals = access, audit, Refusals()

    def who(self, asked: Asked) -> Person:
        """Find who asks. Raises RefusedError where that is nobody who is known."""
        if self._access is None:
            return LOCAL
        try:
            return self._access.who(asked.fields.get("authorization"))
        except RefusedError as error:
            host = network_of(asked.address.rpartition(":")[0].strip("[]"))
            if self._audit is not None and (times := self._refusals.told(f"address {host}")):
                words = f"{asked.method} {asked.path}"
                self._record(None, asked, words, outcome="refused", why=str(error), times=times)
            raise

    def through(self, person: Person, asked: Asked, found: FoundCall) -> Any:
        """Make a call for a person, and give its answer.

        Raises:
          NotPermittedError: the person may not.
          UserError: what the call raises; or the audit log cannot be written, then nothing was done.
        """
        facts = {"on": found.on}
        if (why := refusal(person, found.call)) is not None:
            if times := self._refusals.told(f"person {person.name} {found.call}"):
                self._record(person, asked, found.call, **facts, outcome="refused", why=why, times=times)
            raise NotPermittedError(why)
        if not is_audited(found.call):
            return found.act(person, asked.body)
        if asked.body:
            facts["body_sha256"] = hashlib.sha256(asked.body).hexdigest()
        # Before it is done: no crash leaves a deed of which nobody knows.
        self._record(person, asked, found.call, **facts, outcome="asked")
        try:
            answer = found.act(person, asked.body)
        except Exception as error:
            self._record(person, asked, found.call, **facts, outcome="failed", why=str(error))
            raise
        self._record(person, asked, found.call, **facts, outcome="done")
        return answer

    def _record(self, person: Person | None, asked: Asked, call: str, **facts: Any) -> None:
        if self._audit is None:
            return
        actor = None if person is None else person.name
        roles = [] if person is None else sorted(person.roles)
        told = with_short_texts({"call": call, **facts}, _LONGEST_TEXT)
        self._audit.record(actor=actor, roles=roles, address=asked.address, **told)


class Refusals:
    """Counts refused calls by who made them: each gets a line a second at most, and all together ten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._lock = clock, threading.Lock()
        self._known: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._lines: deque[float] = deque(maxlen=_LINES_A_SECOND)

    def told(self, who: str) -> int:
        """Count a call; returns of how many a line is to tell now, 0 for none."""
        with self._lock:
            now = self._clock()
            last, held = self._known.pop(who, (-_SECONDS_A_LINE, 0))
            many = len(self._lines) == _LINES_A_SECOND and now - self._lines[0] < _SECONDS_A_LINE
            is_told = now - last >= _SECONDS_A_LINE and not many
            self._known[who] = (now, 0) if is_told else (last, held + 1)
            if is_told:
                self._lines.append(now)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
            return held + 1 if is_told else 0
