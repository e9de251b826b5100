"""Alembic runs this to upgrade a database; `fedlm.fl_core.deployment.state.database` gives it the connection."""

from alembic import context

from fedlm.fl_core.deployment.state.tables import TABLES

context.configure(connection=context.config.attributes["connection"], target_metadata=TABLES)
context.run_migrations()
