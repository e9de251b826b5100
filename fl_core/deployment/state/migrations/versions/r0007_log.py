"""The tables of the log of what devices are told."""

import sqlalchemy as sql
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Make the tables."""
    op.create_table("log_keys", sql.Column("private_key", sql.LargeBinary, primary_key=True))
    op.create_table(
        "log_leaves",
        sql.Column("number", sql.BigInteger, primary_key=True, autoincrement=False),
        sql.Column("leaf", sql.LargeBinary, nullable=False),
    )
