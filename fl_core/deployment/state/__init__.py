"""What a server remembers, in a database."""

from fedlm.fl_core.extras import extra

with extra("deploy"):
    import sqlalchemy as sqlalchemy
