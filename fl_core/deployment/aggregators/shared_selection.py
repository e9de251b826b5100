"""Who is selected in a round that several processes share: each decision within one transaction."""

import time
from collections.abc import Callable, Iterable

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from fedlm.fedlm_client.secure_aggregation.taking_part import Step
from fedlm.fl_core.deployment.aggregators.shared_records import Phase, Selection
from fedlm.fl_core.deployment.server.client_registry import DAY_SECONDS, final_rest
from fedlm.fl_core.deployment.server.round_rules import RoundRules
from fedlm.fl_core.deployment.state.tables import (
    CLIENTS,
    MEMBER_MESSAGES,
    PARTICIPATIONS,
    RUNS,
    SELECTIONS,
    SHARED_ROUNDS,
)


def draw_clients(connection: Connection, token: str, rules: RoundRules, rests: Callable[[int], float]) -> None:
    """See `SharedRounds.draw`."""
    ours = (SELECTIONS.c.token == token) & (SELECTIONS.c.state == "candidate")
    query = (
        sql.select(SELECTIONS.c.client, CLIENTS.c.late_until > SHARED_ROUNDS.c.round_number)
        .join(CLIENTS, CLIENTS.c.number == SELECTIONS.c.client)
        .join(SHARED_ROUNDS, SHARED_ROUNDS.c.token == SELECTIONS.c.token)
        .where(ours)
    )
    found = connection.execute(query).all()
    prompt, late = ([one for one, is_late in found if is_late == wanted] for wanted in (False, True))
    to_select = sql.select(SHARED_ROUNDS.c.to_select).where(SHARED_ROUNDS.c.token == token)
    active, most = _active(connection, token), connection.scalar(to_select) or 0
    chosen = rules.draw(prompt, late, active, most)
    select = sql.update(SELECTIONS).where(ours, SELECTIONS.c.client == sql.bindparam("which"))
    if chosen:
        connection.execute(select.values(state="selected"), [{"which": client} for client in chosen])
    connection.execute(sql.delete(SELECTIONS).where(ours))
    let_rest(connection, {one for one, _ in found}.difference(chosen), rests)
    phase = "reporting" if active + len(chosen) >= most else "selecting"
    connection.execute(sql.update(SHARED_ROUNDS).where(SHARED_ROUNDS.c.token == token).values(phase=phase))


def select_client(connection: Connection, token: str, client: int, saved_every: int) -> Selection:
    """See `SharedRounds.select`."""
    ours = SELECTIONS.c.token == token
    known = sql.select(SELECTIONS.c.state).where(ours, SELECTIONS.c.client == client)
    shared = connection.execute(sql.select(SHARED_ROUNDS).where(SHARED_ROUNDS.c.token == token)).first()
    if shared is None or shared.phase == "closed":
        return Selection(False)
    state = connection.scalar(known)
    if state == "selected":
        # Who has begun anew and has other keys than the roster is of no use any more.
        return Selection(not _is_answered(connection, token, client, "keys"))
    if state == "candidate":
        return Selection(False, drawn_later=True)
    # Those that took part are counted only once there is no candidate: a check-in costs the same however many
    # there were before.
    gathering = shared.phase == "gathering"
    active = 0 if gathering or shared.phase == "reporting" else _active(connection, token)
    full = shared.phase == "reporting" or active >= shared.to_select
    # Who was drawn before and has lost the report needs no other draw to send it again.
    if (full and not gathering) or state not in ((None,) if gathering else (None, "lost")):
        return Selection(False)
    rest = _rounds_to_rest(connection, client, shared, saved_every)
    if rest != 0:
        return Selection(False, rest)
    if gathering:
        set_state(connection, token, client, False, state="candidate")
        return Selection(False, drawn_later=True)
    late = sql.select(CLIENTS.c.late_until).where(CLIENTS.c.number == client)
    if active >= shared.minimum and (connection.scalar(late) or 0) > shared.round_number:
        return Selection(False)
    values = {"state": "selected", "aggregator": None, "upload_id": None}
    set_state(connection, token, client, state is not None, **values)
    if active + 1 >= shared.to_select:
        full_now = sql.update(SHARED_ROUNDS).where(SHARED_ROUNDS.c.token == token).values(phase="reporting")
        connection.execute(full_now)
    return Selection(True)


def phase_of(connection: Connection, token: str) -> Phase | None:
    """Say in which phase a round is; None where it is over."""
    return connection.scalar(sql.select(SHARED_ROUNDS.c.phase).where(SHARED_ROUNDS.c.token == token))


def may_mask(connection: Connection, token: str, client: int) -> bool:
    """Say whether a client may report: where reports are masked, once it was told with whom it masks."""
    masks = sql.select(SHARED_ROUNDS.c.masks).where(SHARED_ROUNDS.c.token == token)
    if connection.scalar(masks) is None:
        return True
    return _is_answered(connection, token, client, "shares")


def _is_answered(connection: Connection, token: str, client: int, step: Step) -> bool:
    """Say whether a member of a secure sum has its answer to a step."""
    said = MEMBER_MESSAGES.c
    state = sql.select(said.state).where(said.token == token, said.client == client, said.step == step)
    return connection.scalar(state) == "ready"


def let_rest(connection: Connection, clients: Iterable[int], rests: Callable[[int], float]) -> None:
    """Let clients stay away from now on, each for as long as `rests` says where so many are about."""
    clock = connection.scalar(sql.select(sql.func.max(RUNS.c.clock))) or 0.0
    about = sql.select(sql.func.count()).where(CLIENTS.c.last_seen >= time.time() - DAY_SECONDS)
    population = connection.scalar(about) or 0
    update = sql.update(CLIENTS).where(CLIENTS.c.number == sql.bindparam("which"))
    if rows := [{"which": client, "until": clock + rests(population)} for client in clients]:
        connection.execute(update.values(rests_until=sql.bindparam("until")), rows)


def _active(connection: Connection, token: str) -> int:
    """Count the selected clients that have not declined or been refused, and whose reports are not lost."""
    active = SELECTIONS.c.state.in_(("selected", "claimed"))
    return connection.scalar(sql.select(sql.func.count()).where(SELECTIONS.c.token == token, active)) or 0


def set_state(connection: Connection, token: str, client: int, known: bool, **values: object) -> None:
    """Write what became of a client, of which there is a row if it is `known`."""
    ours = (SELECTIONS.c.token == token) & (SELECTIONS.c.client == client)
    if known:
        connection.execute(sql.update(SELECTIONS).where(ours).values(**values))
    else:
        connection.execute(sql.insert(SELECTIONS).values(token=token, client=client, **values))


def _rounds_to_rest(connection: Connection, client: int, shared: sql.Row, saved_every: int) -> int | None:
    rounds = PARTICIPATIONS.c.round_number
    taken = sql.select(sql.func.max(rounds), sql.func.count()).where(PARTICIPATIONS.c.client == client)
    last, count = connection.execute(taken).one()
    if shared.max_participations is not None and count >= shared.max_participations:
        return final_rest(last, shared.round_number, saved_every)
    return 0 if last is None else max(0, last + shared.min_separation - shared.round_number)
