"""Rounds that several processes share: aggregators receive reports and add up those that they received, and the
coordinator merges their sums.

They share only the database. One exclusive transaction decides which aggregator may add a report, before it does. An
aggregator's sum, with the list of its reports, arrives in one transaction; the aggregator can be declared lost before
it or after it. So a client's report is in at most one sum, and a sum is merged whole or not at all, whichever process
stops, and whenever.
"""

from collections.abc import Callable, Mapping, Sequence

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from fedlm.fl_core.deployment.aggregators.shared_content import SharedContent
from fedlm.fl_core.deployment.aggregators.shared_records import Claim, PartialSum, Phase, Selection, SharedRound, Tally
from fedlm.fl_core.deployment.aggregators.shared_selection import (
    draw_clients,
    let_rest,
    may_mask,
    phase_of,
    select_client,
    set_state,
)
from fedlm.fl_core.deployment.server.round_rules import RoundRules
from fedlm.fl_core.deployment.state.state import AttemptRecord, StateError
from fedlm.fl_core.deployment.state.state_sql import write_attempt
from fedlm.fl_core.deployment.state.tables import (
    AGGREGATORS,
    CLIENTS,
    MEMBER_MESSAGES,
    PARTIAL_SUMS,
    PIECES,
    RUNS,
    SELECTIONS,
    SHARED_ROUNDS,
)


class SharedRounds(SharedContent):
    """What coordinator and aggregators tell each other. Every method raises `StateError` where the database is gone."""

    # The coordinator's side.

    def begin(self) -> None:
        """Forget what an earlier coordinator was doing: its round runs again, and no sum of it is used."""
        with self._database.writing() as connection:
            connection.execute(sql.update(RUNS).values(over=False))
            connection.execute(sql.update(CLIENTS).values(rests_until=0.0))
            _clear(connection)

    def open(self, shared: SharedRound) -> None:
        """Let aggregators take part in a round."""
        with self._database.writing() as connection:
            if phase_of(connection, shared.token) is None:
                connection.execute(sql.insert(SHARED_ROUNDS).values(**shared._asdict()))

    def advance(self, token: str, phase: Phase, seconds_left: float, passed: float = 0.0) -> None:
        """Go on to a phase, or stay in it, after so many seconds. Once it is `closed` no report is claimed any more."""
        values = {"phase": phase, "seconds_left": seconds_left}
        with self._database.writing() as connection:
            connection.execute(sql.update(RUNS).values(clock=RUNS.c.clock + passed))
            connection.execute(sql.update(SHARED_ROUNDS).where(SHARED_ROUNDS.c.token == token).values(**values))

    def tally(self, token: str) -> Tally:
        """Say how a round stands."""
        selected, ours = SELECTIONS.c, SELECTIONS.c.token == token
        states = sql.select(selected.state, sql.func.count()).where(ours).group_by(selected.state)
        claims = sql.select(selected.aggregator, sql.func.count()).where(ours, selected.state == "claimed")
        delivered = sql.select(PARTIAL_SUMS.c.aggregator).where(PARTIAL_SUMS.c.token == token)
        beats = sql.select(AGGREGATORS.c.name, AGGREGATORS.c.beats).where(~AGGREGATORS.c.lost)
        with self._database.reading() as connection:
            phase = phase_of(connection, token)
            if phase is None:
                raise StateError(
                    f"{self._database.name}: the round has vanished; is another coordinator at work there?"
                )
            found = {state: count for state, count in connection.execute(states)}
            candidates = found.pop("candidate", 0)
            return Tally(
                phase,
                found,
                candidates,
                {name: count for name, count in connection.execute(claims.group_by(selected.aggregator))},
                set(connection.scalars(delivered)),
                {name: count for name, count in connection.execute(beats)},
            )

    def draw(self, token: str, rules: RoundRules, rests: Callable[[int], float]) -> None:
        """Select clients uniformly among those that checked in for it; others come in only where they are too few.

        Those that were not drawn stay away for a while, which `rests` draws for each of so many that are about.
        """
        with self._database.writing() as connection:
            draw_clients(connection, token, rules, rests)

    def let_in(self, token: str, most: int, phase: Phase) -> None:
        """Draw or select clients again, until so many are selected that have not declined or been refused."""
        values = {"phase": phase, "to_select": most}
        with self._database.writing() as connection:
            connection.execute(sql.update(SHARED_ROUNDS).where(SHARED_ROUNDS.c.token == token).values(**values))

    def silent(self, token: str) -> list[int]:
        """List the clients that were selected and have not answered."""
        with self._database.reading() as connection:
            return list(connection.scalars(_clients(token, "selected")))

    def lose(self, aggregator: str) -> int:
        """Give an aggregator up with all that it has claimed and delivered; returns how many reports are lost."""
        theirs = (SELECTIONS.c.aggregator == aggregator) & (SELECTIONS.c.state == "claimed")
        with self._database.writing() as connection:
            gone = sql.update(AGGREGATORS).where(AGGREGATORS.c.name == aggregator).values(lost=True)
            connection.execute(gone)
            connection.execute(sql.delete(PARTIAL_SUMS).where(PARTIAL_SUMS.c.aggregator == aggregator))
            return connection.execute(sql.update(SELECTIONS).where(theirs).values(state="lost")).rowcount

    def partial_sums(self, token: str) -> list[PartialSum]:
        """List the sums that are there, one an aggregator, in the order of their names."""
        columns = [PARTIAL_SUMS.c[name] for name in PartialSum._fields]
        query = sql.select(*columns).where(PARTIAL_SUMS.c.token == token).order_by(PARTIAL_SUMS.c.aggregator)
        with self._database.reading() as connection:
            return [PartialSum(*row) for row in connection.execute(query)]

    def claimed(self, token: str, aggregator: str | None = None) -> list[int]:
        """List the clients whose reports count in a round that is closed, of one aggregator if it is named."""
        with self._database.reading() as connection:
            return list(connection.scalars(_clients(token, "claimed", aggregator)))

    def finish(
        self, attempt: AttemptRecord, participants: Sequence[int], silent: Sequence[int], rests: Callable[[int], float]
    ) -> None:
        """Record an attempt, once, the clients whose updates count and those that were silent, and clear away what was
        shared. All that were selected stay away from now on, whoever answered first; see `draw`."""
        ours = (SELECTIONS.c.token == attempt.token) & (SELECTIONS.c.state != "candidate")
        selected = sql.select(SELECTIONS.c.client).where(ours)
        with self._database.writing() as connection:
            write_attempt(connection, attempt, participants, silent)
            let_rest(connection, set(connection.scalars(selected)), rests)
            _clear(connection)

    def end_run(self) -> None:
        """Tell aggregators, and through them clients, that the run is over."""
        with self._database.writing() as connection:
            connection.execute(sql.update(RUNS).values(over=True))

    # An aggregator's side.

    def join(self, aggregator: str) -> None:
        """Make an aggregator known, by a name that none has had."""
        with self._database.writing() as connection:
            connection.execute(sql.insert(AGGREGATORS).values(name=aggregator, beats=0, lost=False))

    def beat(self, aggregator: str) -> bool:
        """Say that an aggregator lives; returns whether it still counts as living."""
        alive = (AGGREGATORS.c.name == aggregator) & ~AGGREGATORS.c.lost
        with self._database.writing() as connection:
            done = connection.execute(sql.update(AGGREGATORS).where(alive).values(beats=AGGREGATORS.c.beats + 1))
            return done.rowcount == 1

    def current(self) -> tuple[SharedRound | None, int, bool]:
        """Say which round there is, if any; how many aggregators live; and whether the run is over."""
        columns = [SHARED_ROUNDS.c[name] for name in SharedRound._fields]
        with self._database.reading() as connection:
            row = connection.execute(sql.select(*columns)).first()
            living = sql.select(sql.func.count()).select_from(AGGREGATORS).where(~AGGREGATORS.c.lost)
            over = connection.scalar(sql.select(RUNS.c.over))
            return SharedRound(*row) if row else None, connection.scalar(living) or 0, bool(over)

    def number_clients(self, identities: Sequence[str]) -> dict[str, int]:
        """Find the numbers of clients by identity, giving new clients the next ones."""
        query = sql.select(CLIENTS.c.identity, CLIENTS.c.number).where(CLIENTS.c.identity.in_(identities))
        with self._database.writing() as connection:
            found = {identity: number for identity, number in connection.execute(query)}
            last = connection.scalar(sql.select(sql.func.max(CLIENTS.c.number)))
            new = [identity for identity in dict.fromkeys(identities) if identity not in found]
            numbers = range(0 if last is None else last + 1, (0 if last is None else last + 1) + len(new))
            rows = [
                {"number": number, "identity": identity, "version": "", "check_ins": 0, "last_seen": 0.0}
                for number, identity in zip(numbers, new, strict=True)
            ]
            if rows:
                connection.execute(sql.insert(CLIENTS), rows)
        return found | {row["identity"]: row["number"] for row in rows}

    def seconds_early(self, identities: Sequence[str]) -> dict[str, float]:
        """Say for how many seconds clients should still have stayed away, by identity; none for who is in time."""
        left = CLIENTS.c.rests_until - sql.select(sql.func.coalesce(sql.func.max(RUNS.c.clock), 0)).scalar_subquery()
        query = sql.select(CLIENTS.c.identity, left).where(CLIENTS.c.identity.in_(identities), left > 0)
        with self._database.reading() as connection:
            return {identity: seconds for identity, seconds in connection.execute(query)}

    def select(self, token: str, client: int, saved_every: int) -> Selection:
        """Take a client into a round, or into its draw, if it may and is needed.

        A client that was selected before, and has not answered, is told the same again; so is one whose report was
        lost.
        """
        with self._database.writing() as connection:
            return select_client(connection, token, client, saved_every)

    def takes_part(self, token: str, client: int) -> bool:
        """Say whether a client was selected, by whichever aggregator."""
        return self._state(token, client) not in (None, "candidate")

    def is_awaited(self, token: str, client: int) -> bool:
        """Say whether a client was selected, by whichever aggregator, and has not answered."""
        return self._state(token, client) == "selected"

    def _state(self, token: str, client: int) -> str | None:
        query = sql.select(SELECTIONS.c.state).where(SELECTIONS.c.token == token, SELECTIONS.c.client == client)
        with self._database.reading() as connection:
            return connection.scalar(query)

    def claim(self, token: str, client: int, aggregator: str, upload_id: bytes) -> Claim:
        """Take the right to add a client's report, which is whole.

        Returns:
          `taken`: the report may be added now; `mine`: this aggregator took the right to add the same upload before;
          `elsewhere`: another one did, and may have been lost since; `answered`: the client has answered otherwise;
          `late`: the round is over, or this aggregator takes no part in it any more; `early`: the report is masked,
          and the client was not told yet with whom.
        """
        ours = (SELECTIONS.c.token == token) & (SELECTIONS.c.client == client)
        alive = sql.select(AGGREGATORS.c.name).where(AGGREGATORS.c.name == aggregator, ~AGGREGATORS.c.lost)
        with self._database.writing() as connection:
            found = connection.execute(sql.select(SELECTIONS).where(ours)).first()
            if phase_of(connection, token) in (None, "closed") or found is None or connection.scalar(alive) is None:
                return "late"
            if connection.scalar(_sum_of(token, aggregator)) is not None:
                return "late"
            if found.state == "claimed" and found.upload_id == upload_id:
                return "mine" if found.aggregator == aggregator else "elsewhere"
            if found.state not in ("selected", "lost"):
                return "answered"
            if not may_mask(connection, token, client):
                return "early"
            set_state(connection, token, client, True, state="claimed", aggregator=aggregator, upload_id=upload_id)
            return "taken"

    def settle(self, token: str, states: Mapping[int, str], aggregator: str) -> None:
        """Record what became of clients whose reports are not in this aggregator's sum.

        What another has claimed is left alone. `selected`: the client may still report; `declined`: it answered without
        an update; `refused`: for good.
        """
        free = (SELECTIONS.c.state == "selected") | (SELECTIONS.c.aggregator == aggregator)
        with self._database.writing() as connection:
            for client, state in states.items():
                ours = (SELECTIONS.c.token == token) & (SELECTIONS.c.client == client) & free
                values = {"state": state, "aggregator": None, "upload_id": None}
                connection.execute(sql.update(SELECTIONS).where(ours).values(**values))

    def deliver(self, partial: PartialSum, clients: Sequence[int], leaving: bool = False) -> bool:
        """Hand over the sum of some clients' reports, whole, once the round is closed.

        An aggregator that is `leaving` hands it over before, and can claim nothing after.

        Returns:
          Whether it was taken, now or before; not where the aggregator counts as lost, or the round is gone.

        Raises:
          StateError: the aggregator had no right to add one of the reports.
        """
        claims = _clients(partial.token, "claimed", partial.aggregator)
        there = _sum_of(partial.token, partial.aggregator)
        lost = sql.select(AGGREGATORS.c.lost).where(AGGREGATORS.c.name == partial.aggregator)
        with self._database.writing() as connection:
            phase = phase_of(connection, partial.token)
            if phase is None or (phase != "closed" and not leaving) or connection.scalar(lost):
                return False
            if connection.scalar(there) is not None:
                return True
            claimed = set(connection.scalars(claims))
            if not claimed.issuperset(clients) or partial.reports != len(set(clients)):
                raise StateError(
                    f"{self._database.name}: the aggregator {partial.aggregator} had no right to add some reports in "
                    "its sum; the sum is not used"
                )
            for client in claimed.difference(clients):
                set_state(connection, partial.token, client, True, state="lost")
            connection.execute(sql.insert(PARTIAL_SUMS).values(**partial._asdict()))
            return True


def _clients(token: str, state: str, aggregator: str | None = None) -> sql.Select:
    """Make the query of the clients of a round that are in a state, by what one aggregator did if it is named."""
    query = sql.select(SELECTIONS.c.client).where(SELECTIONS.c.token == token, SELECTIONS.c.state == state)
    return query if aggregator is None else query.where(SELECTIONS.c.aggregator == aggregator)


def _sum_of(token: str, aggregator: str) -> sql.Select:
    """Make the query of whether an aggregator has handed over its sum."""
    ours = (PARTIAL_SUMS.c.token == token) & (PARTIAL_SUMS.c.aggregator == aggregator)
    return sql.select(PARTIAL_SUMS.c.token).where(ours)


def _clear(connection: Connection) -> None:
    for table in (PARTIAL_SUMS, MEMBER_MESSAGES, SELECTIONS, SHARED_ROUNDS, PIECES):
        connection.execute(sql.delete(table))
    connection.execute(sql.delete(AGGREGATORS).where(AGGREGATORS.c.lost))
