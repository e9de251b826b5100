"""A device's own count of the rounds that it took part in. By it the device holds a server to the first plan it saw.

A server promises how many rounds there are, how often a client takes part, and how many rounds apart. These promises
follow from its own database, which a device cannot see. So a device remembers the first plan that it was shown for a
population, and each round that got an update of its text. It refuses more, whatever plan a server shows later,
whichever rounds it repeats, and however often it begins a population again. Only the device's owner changes that.
All runs of a population number their rounds one after another, so that they share the plan.

An abandoned attempt at a round may be made again: the same request gives the same update, bit for bit. But each attempt
at a secure sum has other noise, and the difference of two exact sums may be one update. So its round is over for the
device before its vector leaves, whatever the server says, also where no plan is shown, in all populations and for
good. Rounds without a plan go forward in one run alone: a server makes up runs, and models that differ in a bit.

The result of training (a loss, or no number) goes to the server before an update, and the server need not take the
update. A server could make up a model whose loss tells the text. So the device counts results too: beside the updates
it tells as many others as the plan has participations, or four. That leaves room for rounds that were full.
"""

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from . import messages_pb2 as messages
from .errors import ClientError
from .link.protocol import LONGEST_POPULATION
from .record_file import RecordFile
from .transparency.receipts import Receipts
from .transparency.watched_log import WatchedLog

_LEAST_TOLD = 4
_NOTHING = ""
"""In place of the digest of what a round may be asked again: nothing has it."""


class ShownPlan(NamedTuple):
    """What a server promises of participation."""

    rounds: int  # of all runs of the population
    max_participations: int | None  # of one client; None for as often as the separation allows
    min_separation: int  # the least difference between the numbers of two rounds of a client

    @property
    def most(self) -> int:
        """How many rounds one client takes part in."""
        fitting = -(-self.rounds // self.min_separation)
        return fitting if self.max_participations is None else min(self.max_participations, fitting)

    def allows(self, other: "ShownPlan") -> bool:
        """Say whether all that another plan lets happen is allowed."""
        return other.rounds <= self.rounds and other.most <= self.most and other.min_separation >= self.min_separation

    @property
    def words(self) -> str:
        """What it promises, in words."""
        often = f"at most {self.most} of {self.rounds} rounds"
        return f"{often}, whose numbers differ by at least {self.min_separation}"


class OwnParticipation:
    """What a device has been shown, and has taken part in. Several runs of one population share one count.

    Attributes:
      record: where that is kept.
      log: what it knows of its server's log.
    """

    def __init__(
        self,
        path: Path | None = None,
        accept_plan: bool = False,
        require_plan: bool = False,
        *,
        receipts: Receipts | None = None,
        populations: Collection[str] = (),
    ):
        """Open a record, which need not exist yet.

        Args:
          path: its file, for one client alone; it lasts as long as the process where None.
          accept_plan: take the next plan that a server shows in place of what was shown before, also one of another
            population: the owner's word, for once, or once for each population that is named. No plan is never taken
            in place of one.
          require_plan: take part for a server that shows a plan alone.
          receipts: where the device shows what it saw of its server's log, and sees what others saw.
          populations: those that the device belongs to by its owner's word, which takes the first plan of each; where
            none is named, those whose plans the device was shown, or the first one to show a plan.
        """
        self.record, self._require, self._named = RecordFile(path), require_plan, tuple(populations)
        self._accept: set[str | None] = set(self._named or [None]) if accept_plan else set()
        self.log = WatchedLog(self.record, accept_plan, receipts)

    def belongs_to(self) -> list[str]:
        """Name the populations of the device; none where it takes whichever the server shows. Raises ClientError where
        the record cannot be read."""
        known = [] if self._accept else [one for one, found in self._read().items() if found["plan"] is not None]
        return list(self._named or known)

    def may(self, configuration: messages.RoundConfiguration, device: object) -> str:
        """Hold what a server asks for to the plan.

        Args:
          configuration: what it asks for; not trusted.
          device: names what else an update follows from, see `Trainer.depends_on`.

        Returns:
          Why not, in a few words; empty where the device may take part.

        Raises:
          ClientError: the server shows less than it showed first, or the record cannot be read.
        """
        name, plan = configuration.population, _read_plan(configuration)
        record = self._read()
        known = {one: ShownPlan(*found["plan"]) for one, found in record.items() if found["plan"] is not None}
        if self._named and name not in self._named:
            raise ClientError(
                f"the server asks for the population {name!r}, but this device belongs to "
                f"{', '.join(map(repr, self._named))}. If its owner agrees, name it with --population too"
            )
        if plan is None and (known or self._require):
            raise ClientError(
                "the server shows no plan of how often this device takes part"
                + (_ANOTHER_RECORD if known else "; leave out --require-plan to take part all the same")
            )
        if self._named:
            # What plan another population was shown is nothing to this one.
            known = {one: shown for one, shown in known.items() if one == name}
        agreed = (word := name if self._named else None) in self._accept
        if agreed:
            self._accept.remove(word)
            if plan is None and configuration.HasField("secure_sum"):
                self._let_sum(configuration)
        if plan is None:
            return self._why_no_exact_sum(configuration)
        if agreed or not known:
            record[name] = _of(record, name) | {"plan": list(plan)}
            known[name] = plan
            self._write(record)
        if name not in known:
            raise ClientError(
                f"the server asks for the population {name!r}, but this device is one of "
                f"{', '.join(map(repr, known))}{_ADVICE}"
            )
        if not known[name].allows(plan):
            raise ClientError(
                f"the server shows a plan that allows more ({plan.words}) than the one that it showed first "
                f"({known[name].words}){_ADVICE}"
            )
        return _why_not(plan, _of(record, name), _number(configuration), _digest(configuration, device))

    def tell(self, configuration: messages.RoundConfiguration, device: object) -> None:
        """Count what training came to, which goes to a server before it says whether it wants the update; see
        `take`."""
        if not configuration.HasField("participation"):
            return
        record, name, digest = self._read(), configuration.population, _digest(configuration, device)
        found = _of(record, name)
        if digest not in found["told"] and digest not in found["taken"].values():
            record[name] = found | {"told": [*found["told"], digest]}
            self._write(record)

    def take(self, configuration: messages.RoundConfiguration, device: object) -> None:
        """Count a round that an update goes to; when this returns, it is on disk. Raises ClientError where it cannot
        be written."""
        if configuration.HasField("secure_sum") and not configuration.HasField("participation"):
            self._let_sum(configuration)
            latest = {configuration.run: configuration.round_number}
            self.record.write("exact_rounds", self.record.read("exact_rounds", _check_rounds) | latest)
            return
        record, name, digest = self._read(), configuration.population, _digest(configuration, device)
        found = _of(record, name)
        again = _NOTHING if configuration.HasField("secure_sum") else digest
        taken = found["taken"] | {str(_number(configuration)): again}
        record[name] = found | {"taken": taken, "told": [one for one in found["told"] if one != digest]}
        self._write(record)

    def _why_no_exact_sum(self, configuration: messages.RoundConfiguration) -> str:
        """Hold a server to rounds of one run that go forward, where no plan counts them: it gets no second sum of a
        round."""
        if not configuration.HasField("secure_sum"):
            return ""
        runs = self.record.read("exact_runs", _check_runs)
        # Who only now names populations, or names none any more, has agreed to no other run.
        words = (self._word(configuration), "", *(() if self._named else runs))
        if configuration.run != next((runs[one] for one in words if one in runs), configuration.run):
            raise ClientError(
                "the server asks for an exact sum of another run than the one that this device was in sums of, which "
                f"would tell more of it{_ADVICE}"
            )
        latest = self.record.read("exact_rounds", _check_rounds)
        return (
            ""
            if configuration.round_number > latest.get(configuration.run, -1)
            else "it was in a sum of that round, or of a later one"
        )

    def _let_sum(self, configuration: messages.RoundConfiguration) -> None:
        """Let a run, and no other, have exact sums of its population."""
        runs = self.record.read("exact_runs", _check_runs)
        self.record.write("exact_runs", runs | {self._word(configuration): configuration.run})

    def _word(self, configuration: messages.RoundConfiguration) -> str:
        """Name the population, where the device's owner and not the server says which there are."""
        return configuration.population if self._named else ""

    def _read(self) -> dict[str, Any]:
        return self.record.read("populations", _check_populations)

    def _write(self, record: dict[str, Any]) -> None:
        self.record.write("populations", record)


_ADVICE = ". If its owner agrees, start the client with --accept-plan"
_ANOTHER_RECORD = ", but one was shown before. If its owner agrees to that, give the client another --record"


def _check_runs(found: dict[str, Any]) -> None:
    if any(type(run) is not str for run in found.values()):
        raise ValueError("its exact sums are not of runs")


def _check_rounds(found: dict[str, Any]) -> None:
    if any(type(number) is not int or number < 0 for number in found.values()):
        raise ValueError("its latest exact sums are not of rounds")


def _check_populations(found: dict[str, Any]) -> None:
    for one in found.values():
        _check_kept(one)


def _check_kept(found: dict[str, Any]) -> None:
    """Refuse, with `ValueError` or what follows from other types, what `_write` does not write."""
    if found["plan"] is not None:
        rounds, most, apart = found["plan"]
        if any(type(one) is not int or one < 1 for one in (rounds, 1 if most is None else most, apart)):
            raise ValueError("a plan is not three numbers")
    if not all(number.isdecimal() and type(digest) is str for number, digest in found["taken"].items()):
        raise ValueError("its rounds are not numbers with digests")
    if type(found["told"]) is not list:
        raise ValueError("its told updates are not a list")


def _of(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {"plan": None, "taken": {}, "told": []} | record.get(name, {})


def _number(configuration: messages.RoundConfiguration) -> int:
    """Number a round among those of all runs of its population."""
    return configuration.participation.first_round + configuration.round_number


def _why_not(plan: ShownPlan, found: Mapping[str, Any], number: int, digest: str) -> str:
    taken, told = found["taken"], found["told"]
    if taken.get(str(number)) == digest:
        return ""
    if number >= plan.rounds:
        return f"the plan has {plan.rounds} rounds"
    if any(abs(number - int(other)) < plan.min_separation for other in taken):
        return f"it took part in a round less than {plan.min_separation} rounds away"
    if len(taken) >= plan.most:
        return f"it has taken part {len(taken)} times, as often as the plan allows"
    if digest not in told and len(told) >= max(plan.most, _LEAST_TOLD):
        return f"it has reported on {len(told)} trainings whose updates no server took"
    return ""


def _read_plan(configuration: messages.RoundConfiguration) -> ShownPlan | None:
    name, shown = configuration.population, configuration.participation
    if len(name) > LONGEST_POPULATION or not name.isprintable():
        shown_name = name[:LONGEST_POPULATION]
        raise ClientError(f"the server asks for a population without a proper name ({shown_name!r})")
    if not configuration.HasField("participation"):
        return None
    most = shown.max_participations if shown.HasField("max_participations") else None
    if shown.rounds < 1 or shown.min_separation < 1 or most == 0:
        raise ClientError("the server shows a plan without rounds, participations or a separation")
    return ShownPlan(shown.rounds, most, shown.min_separation)


def request_of(configuration: messages.RoundConfiguration, *but: str) -> bytes:
    """Give the bytes of all of a request that an update follows from, but some fields."""
    asked = messages.RoundConfiguration()
    asked.CopyFrom(configuration)
    for name in ("attempt", "seconds", "population", "participation", *but):
        asked.ClearField(name)
    return asked.SerializeToString(deterministic=True)


def asked_of_all(configuration: messages.RoundConfiguration) -> bytes:
    """Give the SHA-256 of all that every member of a secure sum is asked alike: whatever its update follows from, but
    for who it is and the plan that it may train by."""
    return hashlib.sha256(request_of(configuration, "client_index", "plan")).digest()


def _digest(configuration: messages.RoundConfiguration, device: object) -> str:
    """Name all that an update follows from."""
    # In a secure sum a device has an index of its own, another one each time that it is started.
    own = ("client_index",) if configuration.HasField("secure_sum") else ()
    return hashlib.sha256(request_of(configuration, *own) + repr(device).encode()).hexdigest()
