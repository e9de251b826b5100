"""The tables of the first version."""

import sqlalchemy as sql
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    _of_all_rounds()
    _of_shared_rounds()


def _of_all_rounds() -> None:
    op.create_table(
        "runs",
        sql.Column("run", sql.String(64), primary_key=True),
        sql.Column("over", sql.Boolean, nullable=False, server_default=sql.false()),
        sql.Column("process", sql.String(64)),
        sql.Column("clock", sql.Double, nullable=False, server_default="0"),
    )
    op.create_table(
        "clients",
        sql.Column("number", sql.Integer, primary_key=True, autoincrement=False),
        sql.Column("identity", sql.String(256), nullable=False, unique=True),
        sql.Column("version", sql.String(64), nullable=False),
        sql.Column("check_ins", sql.Integer, nullable=False),
        sql.Column("last_seen", sql.Float, nullable=False),
        sql.Column("late_until", sql.Integer, nullable=False, server_default="0"),
        sql.Column("rests_until", sql.Double, nullable=False, server_default="0"),
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
        sql.Column("lost", sql.Integer, nullable=False, server_default="0"),
        sql.Column("bytes_down", sql.BigInteger, nullable=False),
        sql.Column("bytes_up", sql.BigInteger, nullable=False),
    )
    op.create_table(
        "participations",
        sql.Column("round_number", sql.Integer, primary_key=True),
        sql.Column("client", sql.Integer, sql.ForeignKey("clients.number"), primary_key=True, index=True),
    )
    op.create_table(
        "releases",
        sql.Column("rounds", sql.Integer, primary_key=True, autoincrement=False),
        sql.Column("digest", sql.String(64), nullable=False),
        sql.Column("released", sql.Float, nullable=False),
    )


def _of_shared_rounds() -> None:
    op.create_table(
        "aggregators",
        sql.Column("name", sql.String(64), primary_key=True),
        sql.Column("beats", sql.BigInteger, nullable=False),
        sql.Column("lost", sql.Boolean, nullable=False),
    )
    op.create_table(
        "shared_rounds",
        sql.Column("token", sql.String(64), primary_key=True),
        sql.Column("round_number", sql.Integer, nullable=False),
        sql.Column("seed", sql.BigInteger, nullable=False),
        sql.Column("learning_rate", sql.Double, nullable=False),
        sql.Column("clip_norm", sql.Double),
        sql.Column("to_select", sql.Integer, nullable=False),
        sql.Column("minimum", sql.Integer, nullable=False, server_default="0"),
        sql.Column("min_separation", sql.Integer, nullable=False),
        sql.Column("max_participations", sql.Integer),
        sql.Column("agreement", sql.String(64), nullable=False),
        sql.Column("parameters", sql.String(64), nullable=False),
        sql.Column("phase", sql.String(16), nullable=False),
        sql.Column("seconds_left", sql.Double, nullable=False),
    )
    op.create_table(
        "selections",
        sql.Column("token", sql.String(64), sql.ForeignKey("shared_rounds.token"), primary_key=True),
        sql.Column("client", sql.Integer, sql.ForeignKey("clients.number"), primary_key=True),
        sql.Column("state", sql.String(16), nullable=False),
        sql.Column("aggregator", sql.String(64), sql.ForeignKey("aggregators.name")),
        sql.Column("upload_id", sql.LargeBinary),
    )
    op.create_table(
        "partial_sums",
        sql.Column("token", sql.String(64), sql.ForeignKey("shared_rounds.token"), primary_key=True),
        sql.Column("aggregator", sql.String(64), sql.ForeignKey("aggregators.name"), primary_key=True),
        sql.Column("content", sql.String(64), nullable=False),
        sql.Column("reports", sql.Integer, nullable=False),
        sql.Column("steps", sql.BigInteger, nullable=False),
        sql.Column("bytes_down", sql.BigInteger, nullable=False),
        sql.Column("bytes_up", sql.BigInteger, nullable=False),
    )
    op.create_table(
        "pieces",
        sql.Column("digest", sql.String(64), primary_key=True),
        sql.Column("number", sql.Integer, primary_key=True, autoincrement=False),
        sql.Column("content", sql.LargeBinary, nullable=False),
    )
