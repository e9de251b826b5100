"""The tables of the server's database. `fl_core/serving/migrations` holds the steps that lead to them."""

import sqlalchemy as sql

TABLES = sql.MetaData()
RUNS = sql.Table("runs", TABLES, sql.Column("run", sql.String(64), primary_key=True))
CLIENTS = sql.Table(
    "clients",
    TABLES,
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("identity", sql.String(256), nullable=False, unique=True),
    sql.Column("version", sql.String(64), nullable=False),
    sql.Column("check_ins", sql.Integer, nullable=False),
    sql.Column("last_seen", sql.Float, nullable=False),
)
ATTEMPTS = sql.Table(
    "attempts",
    TABLES,
    sql.Column("number", sql.Integer, primary_key=True),
    sql.Column("token", sql.String(64), nullable=False, unique=True),
    sql.Column("round_number", sql.Integer, nullable=False, index=True),
    sql.Column("outcome", sql.String(16), nullable=False),
    sql.Column("reason", sql.String(256), nullable=False),
    sql.Column("started", sql.Float, nullable=False),
    sql.Column("seconds", sql.Float, nullable=False),
    *(sql.Column(name, sql.Integer, nullable=False) for name in ("selected", "reported", "refused", "declined")),
    *(sql.Column(name, sql.BigInteger, nullable=False) for name in ("bytes_down", "bytes_up")),
)
PARTICIPATIONS = sql.Table(
    "participations",
    TABLES,
    sql.Column("round_number", sql.Integer, primary_key=True),
    sql.Column("client", sql.ForeignKey("clients.number"), primary_key=True),
)
RELEASES = sql.Table(
    "releases",
    TABLES,
    sql.Column("rounds", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("digest", sql.String(64), nullable=False),
    sql.Column("released", sql.Float, nullable=False),
)
