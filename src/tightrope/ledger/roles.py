"""Who may do what, enforced by PostgreSQL's own accounts.

reader: sees everything. spender: also reserves, spends and settles in data sets that are there,
under the name of the account that logged in and no other. owner: also adds data sets. No account
changes or removes an entry, and readers keep no writer waiting.
"""

from __future__ import annotations

from tightrope.ledger.store import Store

__all__ = ["ROLES", "grant_roles"]

ROLES = ("tightrope_reader", "tightrope_spender", "tightrope_owner")

_ROLE = """
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN CREATE ROLE {role} NOLOGIN;
  END IF;
END $$
"""
_POLICY = """
CREATE POLICY {name} ON tightrope_entries FOR {what} TO {role} {test}
"""
_OWN = "(content::json ->> 'who') = session_user AND (content::json ->> 'dataset') = dataset"
_NO_TERMS = "number > 1 AND (content::json ->> 'kind') IN ('reserve', 'spend', 'settle')"


def grant_roles(store: Store) -> None:
    """Make the three roles and their rights; SQLite has no accounts, so there is nothing to do.

    To give a role to an account: GRANT tightrope_spender TO ann.
    """
    if store.is_sqlite:
        return
    _, spender, owner = ROLES
    readers = ", ".join(ROLES)
    policies = [
        ("tightrope_read", "SELECT", readers, "USING (true)"),
        ("tightrope_spend", "INSERT", spender, f"WITH CHECK ({_OWN} AND {_NO_TERMS})"),
        ("tightrope_own", "INSERT", owner, f"WITH CHECK ({_OWN})"),
    ]
    store.run(
        [
            *(_ROLE.format(role=role) for role in ROLES),
            f"GRANT SELECT ON tightrope_entries, alembic_version TO {readers}",
            f"GRANT INSERT ON tightrope_entries TO {spender}, {owner}",
            # a row of it is locked by whoever writes; that needs the right to update
            f"GRANT SELECT, UPDATE ON tightrope_turns TO {spender}, {owner}",
            "ALTER TABLE tightrope_entries ENABLE ROW LEVEL SECURITY",
            *(f"DROP POLICY IF EXISTS {name} ON tightrope_entries" for name, *_ in policies),
            *(_POLICY.format(name=n, what=w, role=r, test=t) for n, w, r, t in policies),
        ]
    )
