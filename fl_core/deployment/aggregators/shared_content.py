"""Bytes that the processes of a server give each other through the database, named by their content."""

import hashlib
from collections.abc import Iterator

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state import StateError
from fedlm.fl_core.deployment.state.tables import PIECES

_PIECE_BYTES = 1 << 20


class SharedContent:
    """What is kept until a round is over. Every method raises `StateError` where the database is gone."""

    def __init__(self, database: Database):
        self._database = database

    def put(self, content: bytes) -> str:
        """Keep bytes until the round is over; returns their SHA-256 in hex, by which they are fetched."""
        digest = hashlib.sha256(content).hexdigest()
        for number, piece in _pieces(content):
            # A piece a transaction, so that nobody waits long for the database.
            with self._database.writing() as connection:
                _keep(connection, digest, number, piece)
        return digest

    def fetch(self, digest: str) -> bytes:
        """Read bytes that were put there; raises `StateError` where they are not there, or damaged."""
        query = sql.select(PIECES.c.content).where(PIECES.c.digest == digest).order_by(PIECES.c.number)
        with self._database.reading() as connection:
            content = b"".join(connection.scalars(query))
        if hashlib.sha256(content).hexdigest() != digest:
            raise StateError(f"{self._database.name}: the content with the digest {digest} is missing or damaged")
        return content


def keep(connection: Connection, content: bytes) -> str:
    """Keep a few bytes as `SharedContent.put` does, within a transaction."""
    digest = hashlib.sha256(content).hexdigest()
    for number, piece in _pieces(content):
        _keep(connection, digest, number, piece)
    return digest


def _pieces(content: bytes) -> Iterator[tuple[int, bytes]]:
    for number, start in enumerate(range(0, len(content), _PIECE_BYTES)):
        yield number, content[start : start + _PIECE_BYTES]


def _keep(connection: Connection, digest: str, number: int, piece: bytes) -> None:
    there = sql.select(PIECES.c.digest).where(PIECES.c.digest == digest, PIECES.c.number == number)
    if connection.scalar(there) is None:
        connection.execute(sql.insert(PIECES).values(digest=digest, number=number, content=piece))
