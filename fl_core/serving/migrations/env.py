"""Alembic runs this to upgrade a database; `fl_core.serving.database` gives it the connection."""

from alembic import context

from fl_core.serving.tables import TABLES

context.configure(connection=context.config.attributes["connection"], target_metadata=TABLES)
context.run_migrations()
