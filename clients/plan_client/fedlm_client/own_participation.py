"""A device's own count of the rounds that it took part in, which holds a server to the plan that it showed first.

What is counted, and refused, is that of fedlm's client (`docs/security.md`), and so is the file.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from fedlm_client import messages_pb2 as messages
from fedlm_client.errors import ClientError

_LONGEST_NAME, _LEAST_TOLD = 128, 4
_ADVICE = "; if its owner agrees, start the client with --accept-plan"
_Promise = tuple[int, int | None, int]  # rounds, most of one client (None for any), least separation


def _most(promise: _Promise) -> int:
    rounds, most, apart = promise
    fitting = -(-rounds // apart)
    return fitting if most is None else min(most, fitting)


class OwnParticipation:
    """What a device was promised, and has taken part in."""

    def __init__(self, path: Path, accept_plan: bool = False, require_plan: bool = False):
        """Open a record, which need not exist yet; see `fedlm_client.cli` for the owner's words."""
        self._path, self._accept, self._require = path, accept_plan, require_plan

    def may(self, asked: "messages.RoundConfiguration", examples: str) -> str:
        """Say why the device may not take part, in a few words, or nothing where it may.

        Raises:
          ClientError: the server promises less than it promised first, or the record cannot be read.
        """
        promise, record, name = _promise(asked), self._read(), asked.population
        known = {one: tuple(found["plan"]) for one, found in record.items() if found["plan"] is not None}
        if self._accept or (promise is not None and not known):
            if promise is None:
                record, known = {one: found | {"plan": None} for one, found in record.items()}, {}
            else:
                record[name] = _of(record, name) | {"plan": list(promise)}
                known[name] = promise
            self._accept = False
            self._write(record)
        if promise is None:
            if known or self._require:
                raise ClientError(f"the server promises nothing of how often this device takes part{_ADVICE}")
            return ""
        if name not in known:
            raise ClientError(f"the server asks for the population {name!r}, but this device is of another{_ADVICE}")
        first = known[name]
        if promise[0] > first[0] or _most(promise) > _most(first) or promise[2] < first[2]:
            raise ClientError(
                f"the server's plan of participation allows more than the one that it showed first{_ADVICE}"
            )
        return _why_not(promise, _of(record, name), asked.round_number, _digest(asked, examples))

    def tell(self, asked: "messages.RoundConfiguration", examples: str) -> None:
        """Count what training came to, which a server learns before it says whether it wants the update."""
        if not asked.HasField("participation"):
            return
        record, digest = self._read(), _digest(asked, examples)
        found = _of(record, asked.population)
        if digest not in found["told"] and digest not in found["taken"].values():
            record[asked.population] = found | {"told": [*found["told"], digest]}
            self._write(record)

    def take(self, asked: "messages.RoundConfiguration", examples: str) -> None:
        """Count a round that an update goes to; when this returns, it is on disk."""
        record, digest = self._read(), _digest(asked, examples)
        found = _of(record, asked.population)
        taken = found["taken"] | {str(asked.round_number): digest}
        told = [one for one in found["told"] if one != digest]
        record[asked.population] = found | {"taken": taken, "told": told}
        self._write(record)

    def _read(self) -> dict[str, Any]:
        try:
            if not self._path.exists():
                return {}
            found = json.loads(self._path.read_text(encoding="utf-8"))["populations"]
            for one in found.values():
                _check_kept(one)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ClientError(
                f"{self._path}: not a record of what this device took part in ({error}); put it back as it was"
            ) from error
        return dict(found)

    def _write(self, record: dict[str, Any]) -> None:
        beside = self._path.with_name(f".{self._path.name}.new")
        try:
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write(json.dumps({"populations": record}) + "\n")
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
        except OSError as error:
            raise ClientError(
                f"{self._path}: cannot be written ({error}), so that this device does not take part"
            ) from error


def _check_kept(found: dict[str, Any]) -> None:
    """Refuse, with `ValueError` or what follows from other types, what `_write` does not write."""
    if found["plan"] is not None:
        rounds, most, apart = found["plan"]
        if any(type(one) is not int or one < 1 for one in (rounds, 1 if most is None else most, apart)):
            raise ValueError("a plan is none")
    if not all(number.isdecimal() and type(digest) is str for number, digest in found["taken"].items()):
        raise ValueError("its rounds are none")
    if type(found.get("told", [])) is not list:
        raise ValueError("what was told is none")


def _of(record: dict[str, Any], name: str) -> dict[str, Any]:
    return {"plan": None, "taken": {}, "told": []} | record.get(name, {})


def _promise(asked: "messages.RoundConfiguration") -> _Promise | None:
    name, shown = asked.population, asked.participation
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise ClientError("the server asks for a population without a proper name")
    if not asked.HasField("participation"):
        return None
    most = shown.max_participations if shown.HasField("max_participations") else None
    if shown.rounds < 1 or shown.min_separation < 1 or most == 0:
        raise ClientError("the server shows a plan without rounds, participations or a separation")
    return shown.rounds, most, shown.min_separation


def _why_not(promise: _Promise, found: dict[str, Any], number: int, digest: str) -> str:
    taken, told = found["taken"], found["told"]
    if taken.get(str(number)) == digest:
        return ""
    if number >= promise[0]:
        return f"the plan has {promise[0]} rounds"
    if any(abs(number - int(other)) < promise[2] for other in taken):
        return f"it took part less than {promise[2]} rounds apart from that"
    if len(taken) >= _most(promise):
        return f"it has taken part {len(taken)} times, as often as the plan allows"
    if digest not in told and len(told) >= max(_most(promise), _LEAST_TOLD):
        return f"it has told what training came to {len(told)} times for updates that no server took"
    return ""


def _digest(asked: "messages.RoundConfiguration", examples: str) -> str:
    """Name all that an update follows from."""
    of = type(asked)()
    of.CopyFrom(asked)
    for name in ("attempt", "seconds", "population", "participation"):
        of.ClearField(name)
    return hashlib.sha256(of.SerializeToString(deterministic=True) + examples.encode()).hexdigest()
