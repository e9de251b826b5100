"""Rounds that several aggregators share."""

import sqlalchemy as sql
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add what they need, and count reports that were lost."""
    op.add_column("runs", sql.Column("over", sql.Boolean, nullable=False, server_default=sql.false()))
    op.add_column("attempts", sql.Column("lost", sql.Integer, nullable=False, server_default="0"))
    op.create_index("ix_participations_client", "participations", ["client"])
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
        sql.Column("goal", sql.Integer, nullable=False),
        sql.Column("to_select", sql.Integer, nullable=False),
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
