"""Keys and shares of secure sums are kept no more."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Drop what nothing reads."""
    op.drop_column("secure_attempts", "terms")
    for column in ("advertisement", "dealing", "revealed", "culprit"):
        op.drop_column("secure_members", column)
