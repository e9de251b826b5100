"""The tables of the server's database. `migrations` holds the steps that lead to them."""

import sqlalchemy as sql

TABLES = sql.MetaData()
RUNS = sql.Table(
    "runs",
    TABLES,
    sql.Column("run", sql.String(64), primary_key=True),
    sql.Column("over", sql.Boolean, nullable=False, server_default=sql.false()),
    sql.Column("process", sql.String(64)),
    sql.Column("clock", sql.Double, nullable=False, server_default="0"),
)
CLIENTS = sql.Table(
    "clients",
    TABLES,
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("identity", sql.String(256), nullable=False, unique=True),
    sql.Column("version", sql.String(64), nullable=False),
    sql.Column("check_ins", sql.Integer, nullable=False),
    sql.Column("last_seen", sql.Float, nullable=False),
    sql.Column("late_until", sql.Integer, nullable=False, server_default="0"),
    sql.Column("rests_until", sql.Double, nullable=False, server_default="0"),
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
    sql.Column("lost", sql.Integer, nullable=False, server_default="0"),
)
PARTICIPATIONS = sql.Table(
    "participations",
    TABLES,
    sql.Column("round_number", sql.Integer, primary_key=True),
    sql.Column("client", sql.ForeignKey("clients.number"), primary_key=True, index=True),
)
RELEASES = sql.Table(
    "releases",
    TABLES,
    sql.Column("rounds", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("digest", sql.String(64), nullable=False),
    sql.Column("released", sql.Float, nullable=False),
)
# The process that leads; none where nobody does.
LEADERS = sql.Table(
    "leaders",
    TABLES,
    sql.Column("name", sql.String(64), primary_key=True),
    sql.Column("beats", sql.BigInteger, nullable=False),
    sql.Column("held_on", sql.String(64), nullable=False),
)
# The rest is there only while several processes share a round.
AGGREGATORS = sql.Table(
    "aggregators",
    TABLES,
    sql.Column("name", sql.String(64), primary_key=True),
    sql.Column("beats", sql.BigInteger, nullable=False),
    sql.Column("lost", sql.Boolean, nullable=False),
)
SHARED_ROUNDS = sql.Table(
    "shared_rounds",
    TABLES,
    sql.Column("token", sql.String(64), primary_key=True),
    sql.Column("round_number", sql.Integer, nullable=False),
    sql.Column("seed", sql.BigInteger, nullable=False),
    sql.Column("learning_rate", sql.Double, nullable=False),
    sql.Column("clip_norm", sql.Double),
    sql.Column("to_select", sql.Integer, nullable=False),
    sql.Column("minimum", sql.Integer, nullable=False, server_default="0"),
    sql.Column("min_separation", sql.Integer, nullable=False),
    sql.Column("max_participations", sql.Integer),
    sql.Column("agreement", sql.String(64), nullable=False),
    sql.Column("parameters", sql.String(64), nullable=False),
    sql.Column("phase", sql.String(16), nullable=False),
    sql.Column("seconds_left", sql.Double, nullable=False),
    sql.Column("masks", sql.LargeBinary),
    sql.Column("sealing_key", sql.LargeBinary),
    sql.Column("masked_length", sql.BigInteger, nullable=False, server_default="0"),
    sql.Column("masked_bits", sql.Integer, nullable=False, server_default="0"),
)
SELECTIONS = sql.Table(
    "selections",
    TABLES,
    sql.Column("token", sql.ForeignKey("shared_rounds.token"), primary_key=True),
    sql.Column("client", sql.ForeignKey("clients.number"), primary_key=True),
    sql.Column("state", sql.String(16), nullable=False),
    sql.Column("aggregator", sql.ForeignKey("aggregators.name")),
    sql.Column("upload_id", sql.LargeBinary),
)
PARTIAL_SUMS = sql.Table(
    "partial_sums",
    TABLES,
    sql.Column("token", sql.ForeignKey("shared_rounds.token"), primary_key=True),
    sql.Column("aggregator", sql.ForeignKey("aggregators.name"), primary_key=True),
    sql.Column("content", sql.String(64), nullable=False),
    sql.Column("reports", sql.Integer, nullable=False),
    *(sql.Column(name, sql.BigInteger, nullable=False) for name in ("steps", "bytes_down", "bytes_up")),
)
PIECES = sql.Table(
    "pieces",
    TABLES,
    sql.Column("digest", sql.String(64), primary_key=True),
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("content", sql.LargeBinary, nullable=False),
)
MEMBER_MESSAGES = sql.Table(
    "member_messages",
    TABLES,
    sql.Column("token", sql.ForeignKey("shared_rounds.token"), primary_key=True),
    sql.Column("client", sql.ForeignKey("clients.number"), primary_key=True),
    sql.Column("step", sql.String(16), primary_key=True),
    sql.Column("content", sql.LargeBinary, nullable=False),
    sql.Column("state", sql.String(16), nullable=False),
    sql.Column("answer", sql.String(64), nullable=False),
    sql.Column("reason", sql.Text, nullable=False),
)
# The rest is there only where sums are secure.
SECURE_ATTEMPTS = sql.Table(
    "secure_attempts",
    TABLES,
    sql.Column("attempt", sql.String(128), primary_key=True),
    sql.Column("round_number", sql.Integer, nullable=False),
    sql.Column("phase", sql.String(16), nullable=False),
    sql.Column("charged", sql.Boolean, nullable=False),
    sql.Column("reason", sql.String(256), nullable=False),
)
SECURE_MEMBERS = sql.Table(
    "secure_members",
    TABLES,
    sql.Column("attempt", sql.ForeignKey("secure_attempts.attempt"), primary_key=True),
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("owner", sql.String(256), nullable=False),
    sql.Column("dealt", sql.Boolean, nullable=False),
)
# The runs that a server of several was given.
SUBMISSIONS = sql.Table(
    "submissions",
    TABLES,
    sql.Column("number", sql.Integer, primary_key=True),
    sql.Column("name", sql.String(64), nullable=False, unique=True),
    sql.Column("settings", sql.Text, nullable=False),
    sql.Column("submitted", sql.Double, nullable=False),
    sql.Column("state", sql.String(16), nullable=False),
    sql.Column("reason", sql.Text, nullable=False),
    sql.Column("first_round", sql.Integer),
    sql.Column("submitted_by", sql.Text, nullable=False),
    sql.Column("approved_by", sql.Text, nullable=False),
)
# The log of what devices are told.
LOG_KEYS = sql.Table("log_keys", TABLES, sql.Column("private_key", sql.LargeBinary, primary_key=True))
LOG_LEAVES = sql.Table(
    "log_leaves",
    TABLES,
    sql.Column("number", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("leaf", sql.LargeBinary, nullable=False),
)
