"""Which clients take part in an attempt at a round of one process, and when it is over."""

import asyncio
import math
import time
from collections.abc import Callable

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fl_core.deployment.server.reports.attempt import Attempt, Participant
from fedlm.fl_core.deployment.server.reports.receiving import refusal
from fedlm.fl_core.deployment.server.round_rules import RoundProgress, RoundRules
from fedlm.fl_core.deployment.state.state import AttemptRecord

_LONGEST_WAIT = 3600.0


class LocalCollection:
    """A `RoundCollection` of one process: who is selected, and when it is over. No network, no clock of its own.

    Without any client it waits for ever.

    Attributes:
      checked_in: numbers of the clients that have checked in since it was opened.
      changed: set whenever it may be over.
      selection_ends: when nobody more is selected, by the loop's clock.
    """

    def __init__(self, attempt: Attempt, rules: RoundRules, comes_last: Callable[[int], bool] = lambda client: False):
        self.attempt, self.rules = attempt, rules
        self.checked_in: set[int] = set()
        self.changed = asyncio.Event()
        self._named = {int(client) for client in attempt.plan.clients}
        self._comes_last = comes_last
        # Who has checked in for a draw; None where there is nothing to draw.
        self._candidates: set[int] | None = None if self._named or not rules.window_seconds else set()
        self._draws_at = self.selection_ends = self._latest_end = math.inf
        self._most = rules.to_select
        self._replaced = False
        # Who had not answered when others were let in beside them.
        self._overdue: set[int] = set()

    # What calls of clients ask for.

    def claim(self, client: int, upload_id: bytes) -> messages.UploadReply | None:
        return refusal(messages.UploadReply.LATE, "the round is over") if self.attempt.closed else None

    def give_back(self, client: int) -> None:
        pass

    def answered(self, client: int, receipt: messages.UploadReply) -> None:
        self.changed.set()

    def wants(self, client: int, now: float) -> bool:
        """Say whether a client would be selected, were it to check in now, by the loop's clock.

        A client that was selected before, and has not answered, is told the same again.
        """
        participants = self.attempt.participants
        if self.attempt.closed or now >= self.attempt.deadline:
            return False
        if client in participants:
            return participants[client].receipt is None
        if self._candidates is not None or (self._named and client not in self._named):
            return False
        if now >= self.selection_ends and not self._replaced:
            return False
        if self._active() >= self.rules.minimum and self._comes_last(client):
            return False
        return self._active() < self._most

    def keeps(self, client: int, now: float) -> bool:
        """Say whether a client waits for the draw, or was selected and has time left to answer."""
        if self.attempt.closed or now >= self.attempt.deadline:
            return False
        found = self.attempt.participants.get(client)
        return client in (self._candidates or ()) if found is None else found.receipt is None

    def seconds_to_draw(self, client: int, now: float) -> float | None:
        """Take a client into the draw; returns in how many seconds that is, None where nothing is drawn any more."""
        if self._candidates is None or client in self.attempt.participants:
            return None
        if not self._candidates:
            self._draws_at = now + self.rules.window_seconds
            self.changed.set()
        self._candidates.add(client)
        return max(self._draws_at - now, 0.0)

    def look(self, now: float) -> set[int]:
        """Do what is due: draw, or take others in beside clients that are silent.

        Returns:
          The clients that checked in for the draw and were not drawn.
        """
        if not self._replaced and not self._named and now >= self._patience_ends:
            self._replaced = True
            self._overdue = set(self._unanswered())
            more = self.rules.replacements(len(self.attempt.accepted), len(self._overdue))
            self._most = self._active() + more
            self._candidates = set() if more and self.rules.window_seconds else None
        if not self._candidates or now < self._draws_at:
            return set()
        candidates, self._candidates = self._candidates, None
        prompt = [client for client in candidates if not self._comes_last(client)]
        late = [client for client in candidates if self._comes_last(client)]
        drawn = self.rules.draw(prompt, late, self._active(), self._most)
        for client in drawn:
            self.select(client, now)
        return candidates.difference(drawn)

    @property
    def _patience_ends(self) -> float:
        return self.selection_ends + self.rules.patience_seconds

    def silent(self, now: float) -> list[int]:
        """List the selected clients that should have answered in full, and have not.

        Who was let in beside others has until the deadline.
        """
        if now < self._patience_ends:
            return []
        return [one for one in self._unanswered() if now >= self.attempt.deadline or one in self._overdue]

    def _unanswered(self) -> list[int]:
        # To begin an answer is not enough: a byte a second would keep a round waiting as silence does.
        return [client for client, one in self.attempt.participants.items() if one.receipt is None]

    def select(self, client: int, now: float) -> None:
        """Take a client in that the round `wants`."""
        if not self.attempt.participants:
            self.attempt.opened = now
            self._end_selection(now + self.rules.selection_seconds)
        self.attempt.participants.setdefault(client, Participant())
        if not self._replaced and self._active() >= self.rules.to_select:
            self._end_selection(min(self.selection_ends, now))

    def _active(self) -> int:
        return len(self.attempt.participants) - self.attempt.declined - self.attempt.refused

    def _end_selection(self, moment: float) -> None:
        self.selection_ends = moment
        self.attempt.deadline = min(moment + self.rules.reporting_seconds, self._latest_end)
        self.changed.set()

    def hurry(self, now: float) -> None:
        """End soon, whoever has not answered by then: the server is going down."""
        self._latest_end = min(self._latest_end, now + self.rules.drain_seconds)
        self.attempt.deadline = min(self.attempt.deadline, self._latest_end)
        self.changed.set()

    # What the round loop asks for.

    def finished(self, now: float) -> bool:
        """Say whether nothing more is waited for, or time is over."""
        if now >= self.attempt.deadline:
            return True
        participants = self.attempt.participants
        answered = sum(one.receipt is not None for one in participants.values())
        selecting = now < self.selection_ends or bool(self._candidates)
        return self.rules.over(len(self.attempt.accepted), answered, len(participants), selecting)

    def next_moment(self, now: float) -> float:
        """Say how many seconds nothing can change unless a client does something."""
        draw = self._draws_at if self._candidates is not None else math.inf
        moments = (draw, self.selection_ends, self._patience_ends, self.attempt.deadline)
        next_end = min((moment for moment in moments if moment > now), default=now)
        return max(0.0, min(next_end - now, _LONGEST_WAIT))

    def progress(self, now: float) -> RoundProgress:
        """Say how far it is, in numbers that do not change any more."""
        attempt, rules = self.attempt, self.rules
        selected, reported = len(attempt.participants), len(attempt.accepted)
        return RoundProgress(
            round_number=attempt.plan.round_number,
            open=not attempt.closed,
            selecting=not attempt.closed and now < self.selection_ends,
            seconds=now - attempt.opened,
            seconds_left=None if math.isinf(attempt.deadline) else max(attempt.deadline - now, 0.0),
            goal=rules.goal,
            minimum=rules.minimum,
            wanted=rules.to_select,
            checked_in=len(self.checked_in),
            selected=selected,
            reported=reported,
            dropped=selected - reported if attempt.closed else attempt.declined + attempt.refused,
            declined=attempt.declined,
            bytes_down=attempt.bytes_down,
            bytes_up=attempt.bytes_up,
        )

    @property
    def counted(self) -> list[int]:
        """Numbers of the clients that the round counts for, where it is finished."""
        return self.attempt.accepted

    def record(self, seconds: float) -> AttemptRecord:
        """Put down how it ended after so many seconds."""
        attempt = self.attempt
        others = {"declined": attempt.declined, "refused": attempt.refused}
        shortfall = self.rules.shortfall(len(attempt.accepted), len(attempt.participants), **others)
        return AttemptRecord(
            token=attempt.token.hex(),
            round_number=attempt.plan.round_number,
            outcome="abandoned" if shortfall else "finished",
            reason=shortfall,
            started=time.time() - seconds,
            seconds=seconds,
            selected=len(attempt.participants),
            reported=len(attempt.accepted),
            refused=attempt.refused,
            declined=attempt.declined,
            bytes_down=attempt.bytes_down,
            bytes_up=attempt.bytes_up,
        )
