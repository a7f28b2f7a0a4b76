"""Alembic's entry: migrates on the connection that dbmanager.migrate hands over, in its transaction."""

from alembic import context

from dbmanager.schema import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
