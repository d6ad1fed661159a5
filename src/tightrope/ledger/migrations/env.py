"""Run by Alembic, on the connection that tightrope.ledger.store gives it."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
