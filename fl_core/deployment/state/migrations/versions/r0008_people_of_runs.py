"""Who submitted a run, and who approved it."""

import sqlalchemy as sql
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the columns."""
    for name in ("submitted_by", "approved_by"):
        op.add_column("submissions", sql.Column(name, sql.Text, nullable=False, server_default=""))
