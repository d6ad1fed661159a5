"""The log: one table, append-only.

The store itself refuses changes.
"""

import sqlalchemy as sql
from alembic import op

revision, down_revision = "0001", None

_SQLITE = """
CREATE TRIGGER tightrope_entries_{when} BEFORE {when} ON tightrope_entries
BEGIN SELECT RAISE(ABORT, 'entries of a ledger are never changed'); END
"""
_POSTGRESQL = [
    """
    CREATE FUNCTION tightrope_unchanged() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'entries of a ledger are never changed'; END $$
    """,
    """
    CREATE TRIGGER tightrope_entries_unchanged BEFORE UPDATE OR DELETE OR TRUNCATE
    ON tightrope_entries FOR EACH STATEMENT EXECUTE FUNCTION tightrope_unchanged()
    """,
]


def upgrade() -> None:
    op.create_table(
        "tightrope_entries",
        sql.Column("dataset", sql.Text, primary_key=True),
        sql.Column("number", sql.BigInteger, primary_key=True, autoincrement=False),
        sql.Column("content", sql.Text, nullable=False),
        sql.Column("chain", sql.Text, nullable=False),
        sql.Column("signature", sql.Text),
    )
    lite = op.get_bind().dialect.name == "sqlite"
    for statement in (
        [_SQLITE.format(when=when) for when in ("UPDATE", "DELETE")] if lite else _POSTGRESQL
    ):
        op.execute(statement)
