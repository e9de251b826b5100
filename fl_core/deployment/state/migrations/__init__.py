"""The steps, in `versions/`, that lead from one shape of the server's database to the next (alembic)."""
