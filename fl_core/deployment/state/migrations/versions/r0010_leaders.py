"""Which process leads."""

import sqlalchemy as sql
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "leaders",
        sql.Column("name", sql.String(64), primary_key=True),
        sql.Column("beats", sql.BigInteger, nullable=False),
        sql.Column("held_on", sql.String(64), nullable=False),
    )
