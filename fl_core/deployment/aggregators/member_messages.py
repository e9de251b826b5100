"""What members of a secure sum and the coordinator tell each other, by way of aggregators and the database.

An aggregator writes down what a client says, as it came, and gives it the coordinator's answer once there is one. So
any aggregator can serve any step. What members reveal it encrypts for the coordinator. All is gone when the round is
over.
"""

from collections.abc import Iterable
from typing import NamedTuple

import sqlalchemy as sql
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedlm.fedlm_client.secure_aggregation.canonical import labelled
from fedlm.fedlm_client.secure_aggregation.keys import opened, public_of, sealed, shared_key
from fedlm.fedlm_client.secure_aggregation.taking_part import Reply, Step
from fedlm.fl_core.deployment.aggregators.shared_content import SharedContent, keep
from fedlm.fl_core.deployment.state.tables import CLIENTS, MEMBER_MESSAGES, SELECTIONS, SHARED_ROUNDS

_INFO, _KEY_BYTES = labelled("coordinator"), 32
_UNANSWERED = ("new", "wait")


class MemberMessage(NamedTuple):
    """What a client has said."""

    client: int
    owner: str  # the name in its certificate
    step: Step
    content: bytes


class MemberMessages(SharedContent):
    """The messages of rounds. Every method raises `StateError` where the database is gone."""

    # An aggregator's side.

    def ask(self, token: str, client: int, step: Step, content: bytes) -> Reply:
        """Pass on what a client says, once, and give it the answer that there is. Keys of a client that began anew
        take the place of those it had, until they are answered."""
        row = self._row(token, client, step, content)
        began_anew = row is not None and not row.same and step == "keys" and row.state in _UNANSWERED
        if row is None or began_anew:
            if not self._write(token, client, step, content):
                return Reply("over", reason="this sum is over, or of others")
        elif not row.same and step != "reveal":
            return Reply("over", reason="this client has said something else before")
        elif row.state == "over":
            return Reply("over", reason=row.reason)
        elif row.state == "ready":
            return Reply("ready", self.fetch(row.answer))
        # Nothing follows from the last step that the client need wait for.
        return Reply("ready") if step == "reveal" else Reply("wait")

    def _row(self, token: str, client: int, step: Step, content: bytes) -> sql.Row | None:
        said = MEMBER_MESSAGES.c
        same = (said.content == content).label("same")
        query = sql.select(said.state, said.answer, said.reason, same).where(_of(token, client, step))
        with self._database.reading() as connection:
            return connection.execute(query).first()

    def _write(self, token: str, client: int, step: Step, content: bytes) -> bool:
        known = sql.select(MEMBER_MESSAGES.c.client).where(_of(token, client, step))
        member = sql.select(SELECTIONS.c.client).where(
            SELECTIONS.c.token == token, SELECTIONS.c.client == client, SELECTIONS.c.state != "candidate"
        )
        key = sql.select(SHARED_ROUNDS.c.sealing_key).where(SHARED_ROUNDS.c.token == token)
        row = {"token": token, "client": client, "step": step, "state": "new", "answer": "", "reason": ""}
        with self._database.writing() as connection:
            if connection.scalar(member) is None:
                return False
            if connection.scalar(known) is not None:
                unanswered = _of(token, client, "keys") & MEMBER_MESSAGES.c.state.in_(_UNANSWERED)
                if step == "keys":
                    connection.execute(
                        sql.update(MEMBER_MESSAGES).where(unanswered).values(content=content, state="new")
                    )
            else:
                # Who reads the database has parts of the sum, and no shares by which masks are removed.
                content = _sealed(connection.scalar(key) or b"", content) if step == "reveal" else content
                connection.execute(sql.insert(MEMBER_MESSAGES).values(**row, content=content))
        return True

    # The coordinator's side.

    def new(self, token: str) -> list[MemberMessage]:
        """List what clients have said and `answer` has not heard of."""
        said = MEMBER_MESSAGES.c
        query = sql.select(said.client, CLIENTS.c.identity, said.step, said.content)
        query = query.join(CLIENTS, CLIENTS.c.number == said.client).where(said.token == token, said.state == "new")
        with self._database.reading() as connection:
            return [MemberMessage(*row) for row in connection.execute(query)]

    def answer(self, token: str, answers: Iterable[tuple[MemberMessage, Reply]]) -> None:
        """Let clients have answers, all of them or none; one that says to wait is followed by another."""
        said = MEMBER_MESSAGES.c
        ours = (said.token == token) & (said.client == sql.bindparam("whose")) & (said.step == sql.bindparam("which"))
        # What it has said since is new.
        ours &= said.content == sql.bindparam("what")
        with self._database.writing() as connection:
            rows = [
                {
                    "whose": one.client,
                    "which": one.step,
                    "what": one.content,
                    "state": reply.state,
                    "reason": reply.reason,
                }
                | {"answer": keep(connection, reply.content)}
                for one, reply in answers
            ]
            if rows:
                connection.execute(sql.update(MEMBER_MESSAGES).where(ours), rows)


def _sealed(key: bytes, content: bytes) -> bytes:
    own = X25519PrivateKey.generate()
    return public_of(own) + sealed(shared_key(own, key, _INFO), content, _INFO)


def unsealed(key: X25519PrivateKey, message: MemberMessage) -> MemberMessage:
    """Decrypt what an aggregator has encrypted for the coordinator with that key.

    Raises:
      UnsafeSumError: it is of another round, or was changed.
    """
    if message.step != "reveal":
        return message
    other, content = message.content[:_KEY_BYTES], message.content[_KEY_BYTES:]
    return message._replace(content=opened(shared_key(key, other, _INFO), content, _INFO))


def _of(token: str, client: int, step: Step) -> sql.ColumnElement[bool]:
    said = MEMBER_MESSAGES.c
    return (said.token == token) & (said.client == client) & (said.step == step)
