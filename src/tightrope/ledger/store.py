"""Where the logs are kept: SQLite or PostgreSQL, one table, nothing ever changed in it.

A write waits for the turn of its data set (SQLite: the lock of the file; PostgreSQL: the lock of a
row that readers may not take), reads what is there, decides, and adds one entry, in one
transaction. The primary key (data set, number) makes it impossible that two entries follow the same
one, and a trigger that an entry follows none, whatever else goes wrong.

PostgreSQL enforces by its own accounts who may do what (`grant_roles`). reader: sees everything.
spender: also reserves, spends and settles in data sets that are there, under the name of the
account that logged in and no other. owner: also adds data sets. No account changes or removes an
entry, and readers keep no writer waiting.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, final
from urllib.parse import quote

import sqlalchemy as sql
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.exc import DBAPIError

from tightrope.entropy import here
from tightrope.errors import InvalidInput
from tightrope.ledger.log import Head, LogEntry


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    config.set_main_option("path_separator", "os")
    return config


def newest_revision() -> str:
    """Revisions are numbered, so that older and newer ones differ in order."""
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def upgrade(connection: sql.Connection) -> None:
    """All steps that are missing, in the transaction of this connection."""
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


ENTRIES = sql.Table(
    "tightrope_entries",
    sql.MetaData(),
    sql.Column("dataset", sql.Text, primary_key=True),
    sql.Column("number", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("content", sql.Text, nullable=False),
    sql.Column("chain", sql.Text, nullable=False),
    sql.Column("signature", sql.Text),
)
_PATIENCE_S = 60.0
_LOCKS = 7410 << 32  # for whoever makes the tables: apart from the advisory locks of others
_TURNS = 256  # rows of tightrope_turns
_SECRETS = ("password", "sslpassword")  # of a URL's query
# Another writer was faster: the same again, on what is there now.
_AGAIN = {"40001", "40P01", "23505", "SQLITE_BUSY", "SQLITE_CONSTRAINT_PRIMARYKEY"}
_ADVICE = {
    "SQLITE_FULL": "it is full: nothing was written. Make room and try again",
    "53100": "its disk is full: nothing was written. Make room and try again",
    "SQLITE_READONLY": "it is read-only: nothing was written. Open it where you may write",
    "25006": "it is read-only: nothing was written. Open it where you may write",
    "42501": "your account may not do this: nothing was written. Ask the owner for another role",
    "SQLITE_CANTOPEN": "it cannot be opened. Is the path right, and may you write there?",
    "SQLITE_NOTADB": "it is not an SQLite file. Give the path of a ledger",
    "SQLITE_CORRUPT": "the file is damaged. Restore it from a copy",
    "SQLITE_BUSY": "other writers held it too long: nothing was written. Try again",
    "55P03": "another writer held it too long: nothing was written. Try again",
}
_NOTHING = "Nothing was written"
_UNCERTAIN = "Whether it was written is not known: see tightrope ledger history"


@final
class Store:
    """A database of logs. url: a path (SQLite), sqlite:///... or postgresql+psycopg://..."""

    def __init__(self, url: str | Path) -> None:
        self.url = _url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._only_read = _path_to_read(self.url) if self.is_sqlite else None
        options: dict[str, Any] = {"connect_args": {"timeout": _PATIENCE_S}}
        if self._only_read is not None:
            options = {"creator": partial(_reader, self._only_read), "poolclass": sql.NullPool}
        if not self.is_sqlite:
            waiting = {"options": f"-c lock_timeout={_PATIENCE_S:.0f}s", "connect_timeout": 10}
            # Each statement sees what was committed before it: a writer reads after its turn came.
            options = {"isolation_level": "READ COMMITTED", "pool_pre_ping": True}
            options["connect_args"] = waiting
        self._home = here()
        try:
            self._engine = sql.create_engine(self.url, **options)
        except (sql.exc.SQLAlchemyError, ModuleNotFoundError) as error:
            raise InvalidInput(f"{shown(self.url)} cannot be used: {error}. {_FORMS}") from None
        weakref.finalize(self, self._engine.dispose)
        if self.is_sqlite:
            prepare = _prepare_sqlite if self._only_read is None else _prepare_reader
            sql.event.listen(self._engine, "connect", prepare)
            sql.event.listen(self._engine, "begin", _begin_sqlite)

    def create(self) -> None:
        """Make the tables, or bring older ones up to date."""
        with _explained(self.url), self._alone_as_owner() as connection, connection.begin():
            upgrade(connection)

    def check_version(self) -> None:
        """Refuse a store that is not one, or that an older or a newer version made."""
        path = str(self.url.database)
        if self.is_sqlite and not path.startswith("file:") and not Path(path).exists():
            raise InvalidInput(
                f"There is no ledger at {path}. Make one: tightrope ledger init --ledger {path}"
            )
        with _explained(self.url), self._engine.connect() as connection:
            found = MigrationContext.configure(connection).get_current_revision()
        newest = newest_revision()
        if found is None:
            raise InvalidInput(f"{self} holds no ledger. Make one: tightrope ledger init.")
        if found < newest:
            raise InvalidInput(
                f"{self} was made by an older version ({found}; this one has {newest}). Its owner "
                "brings it up to date: tightrope ledger init."
            )
        if found > newest:
            raise InvalidInput(
                f"{self} was made by a newer version ({found}; this one knows {newest}). Update "
                "tightrope."
            )

    def check_not_its_file(self, path: str | Path) -> None:
        """Refuse to write over the ledger, or over the log that belongs to it."""
        own = str(self.url.database) if self.is_sqlite else ""
        for file in (own, f"{own}-wal", f"{own}-shm") if own else ():
            if os.path.exists(file) and os.path.exists(path) and os.path.samefile(file, path):
                raise InvalidInput(f"{path} is the ledger itself. Give the name of another file.")

    def names(self) -> list[str]:
        """The data sets."""
        asked = sql.select(ENTRIES.c.dataset).where(ENTRIES.c.number == 1)
        return sorted(row.dataset for row in self._read(lambda c: [*c.execute(asked)]))

    def entries(self, dataset: str, since: int = 0) -> list[LogEntry]:
        """Those from number `since` on."""
        return self._read(lambda connection: _entries(connection, dataset, since))

    def append(
        self, dataset: str, since: int, decide: Callable[[list[LogEntry], str | None], LogEntry]
    ) -> LogEntry:
        """Add the entry that `decide` makes of those from `since` on, and of the account's name.

        Whatever it raises, nothing is written.
        """
        begun = time.monotonic()
        while True:
            try:
                with self._turn_of(dataset) as connection:
                    known = _entries(connection, dataset, since)
                    entry = decide(known, self._account(connection))
                    connection.execute(ENTRIES.insert(), _row(dataset, entry))
                    return entry
            except DBAPIError as error:
                if _code(error) not in _AGAIN or time.monotonic() - begun > _PATIENCE_S:
                    raise _refusal(self.url, error) from error
                time.sleep(random.uniform(0.0, 0.05))

    def _account(self, connection: sql.Connection) -> str | None:
        """Who logged in to PostgreSQL, whatever role was put on since; SQLite has no accounts."""
        if self.is_sqlite:
            return None
        return str(connection.execute(sql.text("SELECT session_user")).scalar_one())

    @contextmanager
    def _turn_of(self, dataset: str) -> Iterator[sql.Connection]:
        """A transaction that no other writer of the data set is in; it ends with the process."""
        with self._connected() as connection:
            connection.info["writing"] = True  # SQLite: the lock of the file
            try:
                with connection.begin():
                    if not self.is_sqlite:
                        turn = zlib.crc32(dataset.encode()) % _TURNS
                        connection.execute(_TURN, {"id": turn})
                    yield connection
            finally:
                connection.info["writing"] = False

    @contextmanager
    def _alone_as_owner(self) -> Iterator[sql.Connection]:
        """A connection of whoever makes the tables, where there may be no row to lock yet."""
        with self._connected() as connection:
            connection.info["writing"] = True
            if not self.is_sqlite:
                _at_once(connection, "SELECT pg_advisory_lock(:key)", {"key": _LOCKS})
            try:
                yield connection
            finally:
                connection.info["writing"] = False
                if not self.is_sqlite and not connection.invalidated:
                    _at_once(connection, "SELECT pg_advisory_unlock(:key)", {"key": _LOCKS})

    def _read(self, ask: Callable[[sql.Connection], list[Any]]) -> list[Any]:
        """The answer to one question. A file that is only read must not change meanwhile."""
        while True:
            before = _marks(self._only_read)
            with _explained(self.url), self._connected() as connection:
                found = ask(connection)
            if before is None or before == _marks(self._only_read):
                return found

    def _connected(self) -> sql.Connection:
        if self._home != here():  # a connection of the parent process is not ours to use
            self._home = here()
            self._engine.dispose(close=False)
        return self._engine.connect()

    def run(self, statements: list[str]) -> None:
        """Statements of the owner (roles), all or none of them."""
        with _explained(self.url), self._alone_as_owner() as connection, connection.begin():
            for statement in statements:
                connection.execute(sql.text(statement))

    def close(self) -> None:
        self._engine.dispose()

    def __str__(self) -> str:
        return shown(self.url)


def shown(url: sql.URL) -> str:
    """A URL for people: without its passwords, wherever in it they are."""
    hidden = {key: "***" for key in url.query if key.lower() in _SECRETS}
    safe = url.update_query_dict(hidden).render_as_string(hide_password=True)
    return str(safe).replace(quote("***", safe=""), "***")


_FORMS = "A ledger is a path, sqlite:///path or postgresql://user@host/name."


def _url(given: str | Path) -> sql.URL:
    """A URL as it is; anything else is the path of a SQLite file."""
    text = str(given)
    if "://" not in text:
        return sql.URL.create("sqlite", database=text)
    try:
        url = sql.make_url(text)
        backend = url.get_backend_name()
    except (sql.exc.SQLAlchemyError, ValueError):  # their messages repeat it, password and all
        raise InvalidInput(f"What was given for the ledger is no URL. {_FORMS}") from None
    if backend not in ("sqlite", "postgresql"):
        raise InvalidInput(f"A ledger is kept in SQLite or PostgreSQL; got {backend!r}. {_FORMS}")
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def _path_to_read(url: sql.URL) -> str | None:
    """The file, where this account may read it and not write beside it, as SQLite's log needs."""
    path = url.database or ""
    if path.startswith((":", "file:")) or not path or not os.path.exists(path):
        return None
    writable = os.access(path, os.W_OK) and os.access(os.path.dirname(path) or ".", os.W_OK)
    return None if writable else path


def _reader(path: str) -> sqlite3.Connection:
    """With the log that a writer has open, or of the file alone where there is none."""
    alone = "" if os.path.exists(f"{path}-wal") else "&immutable=1"
    where = f"file:{quote(path)}?mode=ro{alone}"
    return sqlite3.connect(where, uri=True, timeout=_PATIENCE_S, check_same_thread=False)


def _marks(path: str | None) -> tuple[Any, ...] | None:
    """What changes when a writer comes or goes, or moves its log into the file."""
    if path is None:
        return None
    log = os.path.exists(f"{path}-wal")
    facts = os.stat(path)
    return (log, None if log else (facts.st_mtime_ns, facts.st_size, facts.st_ino))


def _prepare_sqlite(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # transactions begin below, not by themselves
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _prepare_reader(connection: Any, record: Any) -> None:
    connection.isolation_level = None


def _begin_sqlite(connection: sql.Connection) -> None:
    """A writer takes the lock before it reads: two that both read first would both have to stop."""
    writing = connection.info.get("writing")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _at_once(connection: sql.Connection, statement: str, values: dict[str, Any]) -> None:
    """Outside of the transaction that follows, whose snapshot must be younger than the lock."""
    with connection.begin():
        connection.execute(sql.text(statement), values)


def _entries(connection: sql.Connection, dataset: str, since: int) -> list[LogEntry]:
    asked = (
        sql.select(ENTRIES)
        .where(ENTRIES.c.dataset == dataset, ENTRIES.c.number >= since)
        .order_by(ENTRIES.c.number)
    )
    rows = connection.execute(asked).all()
    return [LogEntry(Head(row.number, row.chain), row.content, row.signature) for row in rows]


def _row(dataset: str, entry: LogEntry) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "number": entry.head.number,
        "content": entry.content,
        "chain": entry.head.chain,
        "signature": entry.signature,
    }


_TURN = sql.text("SELECT id FROM tightrope_turns WHERE id = :id FOR UPDATE")


@contextmanager
def _explained(url: sql.URL) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        raise _refusal(url, error) from error


def _code(error: DBAPIError) -> str:
    """The store's own code of what went wrong."""
    lite = getattr(error.orig, "sqlite_errorname", None)
    return str(lite or getattr(error.orig, "sqlstate", None) or "")


def _words(error: DBAPIError) -> str:
    """The database's message, in one line."""
    return " ".join(str(error.orig).split()).rstrip(".?")


def _refusal(url: sql.URL, error: DBAPIError) -> InvalidInput:
    code, lost = _code(error), error.connection_invalidated
    known = (advice for start, advice in _ADVICE.items() if code.startswith(start))
    words = next(known, f"{_words(error)}. {_UNCERTAIN if lost else _NOTHING}")
    return InvalidInput(f"{shown(url)}: {words}{'' if words.endswith('?') else '.'}")


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
