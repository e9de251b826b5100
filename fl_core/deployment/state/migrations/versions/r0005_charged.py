"""Rounds of secure sums are charged before vectors leave, to all who have dealt shares."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Name the columns by what they say now."""
    op.alter_column("secure_attempts", "announced", new_column_name="charged")
    op.alter_column("secure_members", "survives", new_column_name="dealt")
