"""Where a run's rounds begin among those of its population."""

import sqlalchemy as sql
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column."""
    op.add_column("submissions", sql.Column("first_round", sql.Integer))
