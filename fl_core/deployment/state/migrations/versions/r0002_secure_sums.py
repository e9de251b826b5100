"""The tables of secure sums."""

import sqlalchemy as sql
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "secure_attempts",
        sql.Column("attempt", sql.String(128), primary_key=True),
        sql.Column("round_number", sql.Integer, nullable=False),
        sql.Column("phase", sql.String(16), nullable=False),
        sql.Column("announced", sql.Boolean, nullable=False),
        sql.Column("reason", sql.String(256), nullable=False),
        sql.Column("terms", sql.LargeBinary, nullable=False),
    )
    op.create_table(
        "secure_members",
        sql.Column("attempt", sql.String(128), sql.ForeignKey("secure_attempts.attempt"), primary_key=True),
        sql.Column("number", sql.Integer, primary_key=True, autoincrement=False),
        sql.Column("owner", sql.String(256), nullable=False),
        sql.Column("advertisement", sql.LargeBinary, nullable=False),
        sql.Column("dealing", sql.LargeBinary),
        sql.Column("survives", sql.Boolean, nullable=False),
        sql.Column("revealed", sql.LargeBinary),
        sql.Column("culprit", sql.Boolean, nullable=False),
    )
