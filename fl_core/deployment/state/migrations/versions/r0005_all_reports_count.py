"""A round takes the reports of all the clients that it has selected."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Forget how many reports a shared round takes."""
    op.drop_column("shared_rounds", "goal")
