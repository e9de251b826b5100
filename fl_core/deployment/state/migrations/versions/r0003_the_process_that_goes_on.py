"""Which process goes on with the run."""

import sqlalchemy as sql
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add its name, which nobody knows of a run that was begun before."""
    op.add_column("runs", sql.Column("process", sql.String(64)))
