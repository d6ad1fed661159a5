"""Entries follow each other, whoever writes them; turns of writers; names that can be shown.

Before, a spender could write the first entry of a name, or an entry that follows none, and SQLite's
INSERT OR REPLACE changed an entry behind the triggers.
"""

import sqlalchemy as sql
from alembic import op

revision, down_revision = "0002", "0001"

_TURNS = 256  # as many data sets may be written at once

# NEW.rowid is -1 where none is given; REPLACE also removes the row whose rowid is taken.
_SQLITE = """
CREATE TRIGGER tightrope_entries_INSERT BEFORE INSERT ON tightrope_entries
WHEN NEW.number IS NOT 1 + (
  SELECT coalesce(max(number), 0) FROM tightrope_entries WHERE dataset = NEW.dataset
) OR EXISTS (SELECT 1 FROM tightrope_entries WHERE rowid = NEW.rowid)
BEGIN SELECT RAISE(ABORT, 'entries of a ledger follow each other and are never changed'); END
"""
# The table by its schema: an account's temporary table of the same name comes first otherwise.
_POSTGRESQL = [
    """
    CREATE FUNCTION tightrope_follows() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
    DECLARE last bigint;
    BEGIN
      EXECUTE 'SELECT coalesce(max(number), 0) FROM ' || quote_ident(TG_TABLE_SCHEMA) || '.' ||
        quote_ident(TG_TABLE_NAME) || ' WHERE dataset = $1' INTO last USING NEW.dataset;
      IF NEW.number <> 1 + last THEN
        RAISE EXCEPTION 'entries of a ledger follow each other' USING ERRCODE = '23505';
      END IF;
      RETURN NEW;
    END $$
    """,
    """
    CREATE TRIGGER tightrope_entries_follow BEFORE INSERT ON tightrope_entries
    FOR EACH ROW EXECUTE FUNCTION tightrope_follows()
    """,
    # NOT VALID: what is there already stays, and is shown as damaged
    r"""
    ALTER TABLE tightrope_entries ADD CONSTRAINT tightrope_names CHECK
    (length(dataset) BETWEEN 1 AND 200 AND dataset !~ '[[:cntrl:]]') NOT VALID
    """,
]


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute(_SQLITE)
        return
    for statement in _POSTGRESQL:
        op.get_bind().exec_driver_sql(statement)
    turns = op.create_table("tightrope_turns", sql.Column("id", sql.Integer, primary_key=True))
    op.bulk_insert(turns, [{"id": number} for number in range(_TURNS)])
