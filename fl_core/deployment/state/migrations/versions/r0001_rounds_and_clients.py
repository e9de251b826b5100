"""Clients, attempts at rounds, who took part, and releases."""

import sqlalchemy as sql
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table("runs", sql.Column("run", sql.String(64), primary_key=True))
    op.create_table(
        "clients",
        sql.Column("number", sql.Integer, primary_key=True, autoincrement=False),
        sql.Column("identity", sql.String(256), nullable=False, unique=True),
        sql.Column("version", sql.String(64), nullable=False),
        sql.Column("check_ins", sql.Integer, nullable=False),
        sql.Column("last_seen", sql.Float, nullable=False),
    )
    op.create_table(
        "attempts",
        sql.Column("number", sql.Integer, primary_key=True),
        sql.Column("token", sql.String(64), nullable=False, unique=True),
        sql.Column("round_number", sql.Integer, nullable=False, index=True),
        sql.Column("outcome", sql.String(16), nullable=False),
        sql.Column("reason", sql.String(256), nullable=False),
        sql.Column("started", sql.Float, nullable=False),
        sql.Column("seconds", sql.Float, nullable=False),
        sql.Column("selected", sql.Integer, nullable=False),
        sql.Column("reported", sql.Integer, nullable=False),
        sql.Column("refused", sql.Integer, nullable=False),
        sql.Column("declined", sql.Integer, nullable=False),
        sql.Column("bytes_down", sql.BigInteger, nullable=False),
        sql.Column("bytes_up", sql.BigInteger, nullable=False),
    )
    op.create_table(
        "participations",
        sql.Column("round_number", sql.Integer, primary_key=True),
        sql.Column("client", sql.Integer, sql.ForeignKey("clients.number"), primary_key=True),
    )
    op.create_table(
        "releases",
        sql.Column("rounds", sql.Integer, primary_key=True, autoincrement=False),
        sql.Column("digest", sql.String(64), nullable=False),
        sql.Column("released", sql.Float, nullable=False),
    )
