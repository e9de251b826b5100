"""The table of runs that a server of several was given."""

import sqlalchemy as sql
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "submissions",
        sql.Column("number", sql.Integer, primary_key=True),
        sql.Column("name", sql.String(64), nullable=False, unique=True),
        sql.Column("settings", sql.Text, nullable=False),
        sql.Column("submitted", sql.Double, nullable=False),
        sql.Column("state", sql.String(16), nullable=False),
        sql.Column("reason", sql.Text, nullable=False),
    )
