"""Who is drawn: when clients may come back, and who was silent."""

import sqlalchemy as sql
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add a clock that all processes of a server share, and what is remembered of clients."""
    op.add_column("runs", sql.Column("clock", sql.Double, nullable=False, server_default="0"))
    op.add_column("clients", sql.Column("late_until", sql.Integer, nullable=False, server_default="0"))
    op.add_column("clients", sql.Column("rests_until", sql.Double, nullable=False, server_default="0"))
    op.add_column("shared_rounds", sql.Column("minimum", sql.Integer, nullable=False, server_default="0"))
