"""What aggregators and their coordinator tell each other of secure sums."""

import sqlalchemy as sql
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Make the table and columns."""
    for name in ("masks", "sealing_key"):
        op.add_column("shared_rounds", sql.Column(name, sql.LargeBinary))
    op.add_column("shared_rounds", sql.Column("masked_length", sql.BigInteger, nullable=False, server_default="0"))
    op.add_column("shared_rounds", sql.Column("masked_bits", sql.Integer, nullable=False, server_default="0"))
    op.create_table(
        "member_messages",
        sql.Column("token", sql.String(64), sql.ForeignKey("shared_rounds.token"), primary_key=True),
        sql.Column("client", sql.Integer, sql.ForeignKey("clients.number"), primary_key=True),
        sql.Column("step", sql.String(16), primary_key=True),
        sql.Column("content", sql.LargeBinary, nullable=False),
        sql.Column("state", sql.String(16), nullable=False),
        sql.Column("answer", sql.String(64), nullable=False),
        sql.Column("reason", sql.Text, nullable=False),
    )
