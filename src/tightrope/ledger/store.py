"""Where the logs are kept: SQLite or PostgreSQL, one table, nothing ever changed in it.

A write holds the lock of its data set (SQLite: of the file), reads what is there, decides, and adds
one entry, in one serialisable transaction. The primary key (data set, number) makes it impossible
that two entries follow the same one, whatever else goes wrong.
"""

from __future__ import annotations

import random
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import sqlalchemy as sql
from alembic.runtime.migration import MigrationContext
from sqlalchemy.exc import DBAPIError

from tightrope.entropy import here
from tightrope.errors import InvalidInput
from tightrope.ledger.log import Head, LogEntry
from tightrope.ledger.migrate import newest_revision, upgrade

__all__ = ["Store", "ENTRIES"]

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
_LOCKS = 7410 << 32  # apart from the advisory locks of others
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
        options: dict[str, Any] = {"connect_args": {"timeout": _PATIENCE_S}}
        if not self.is_sqlite:
            waiting = {"options": f"-c lock_timeout={_PATIENCE_S:.0f}s", "connect_timeout": 10}
            options = {"isolation_level": "SERIALIZABLE", "pool_pre_ping": True}
            options["connect_args"] = waiting
        self._home = here()
        self._engine = sql.create_engine(self.url, **options)
        weakref.finalize(self, self._engine.dispose)
        if self.is_sqlite:
            sql.event.listen(self._engine, "connect", _prepare_sqlite)
            sql.event.listen(self._engine, "begin", _begin_sqlite)

    def create(self) -> None:
        """Make the tables, or bring older ones up to date."""
        with _explained(self.url), self._alone("") as connection, connection.begin():
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

    def names(self) -> list[str]:
        """The data sets."""
        asked = sql.select(ENTRIES.c.dataset).where(ENTRIES.c.number == 1)
        with self._reading() as connection:
            return sorted(row.dataset for row in connection.execute(asked))

    def entries(self, dataset: str, since: int = 0) -> list[LogEntry]:
        """Those from number `since` on."""
        with self._reading() as connection:
            return _entries(connection, dataset, since)

    def append(
        self, dataset: str, since: int, decide: Callable[[list[LogEntry], str | None], LogEntry]
    ) -> LogEntry:
        """Add the entry that `decide` makes of those from `since` on, and of the account's name.

        Whatever it raises, nothing is written.
        """
        begun = time.monotonic()
        while True:
            try:
                with self._alone(dataset) as connection, connection.begin():
                    known = _entries(connection, dataset, since)
                    entry = decide(known, self._account(connection))
                    connection.execute(ENTRIES.insert(), _row(dataset, entry))
                    return entry
            except DBAPIError as error:
                if _code(error) not in _AGAIN or time.monotonic() - begun > _PATIENCE_S:
                    raise _refusal(self.url, error) from error
                time.sleep(random.uniform(0.0, 0.05))

    def _account(self, connection: sql.Connection) -> str | None:
        """Who PostgreSQL says is writing; SQLite has no accounts."""
        if self.is_sqlite:
            return None
        return str(connection.execute(sql.text("SELECT current_user")).scalar_one())

    @contextmanager
    def _alone(self, dataset: str) -> Iterator[sql.Connection]:
        """A connection that holds the data set's lock, which goes with the process if it dies."""
        with self._connected() as connection:
            if self.is_sqlite:
                connection.info["writing"] = True
                try:
                    yield connection
                finally:
                    connection.info["writing"] = False
                return
            key = {"key": _LOCKS + zlib.crc32(dataset.encode())}
            _at_once(connection, "SELECT pg_advisory_lock(:key)", key)
            try:
                yield connection
            finally:
                if not connection.invalidated:
                    _at_once(connection, "SELECT pg_advisory_unlock(:key)", key)

    @contextmanager
    def _reading(self) -> Iterator[sql.Connection]:
        with _explained(self.url), self._connected() as connection:
            yield connection

    def _connected(self) -> sql.Connection:
        if self._home != here():  # a connection of the parent process is not ours to use
            self._home = here()
            self._engine.dispose(close=False)
        return self._engine.connect()

    def run(self, statements: list[str]) -> None:
        """Statements of the owner (roles), all or none of them."""
        with _explained(self.url), self._alone("") as connection, connection.begin():
            for statement in statements:
                connection.execute(sql.text(statement))

    def close(self) -> None:
        self._engine.dispose()

    def __str__(self) -> str:
        return str(self.url.render_as_string(hide_password=True))


def _url(given: str | Path) -> sql.URL:
    """A URL as it is; anything else is the path of a SQLite file."""
    text = str(given)
    if "://" not in text:
        return sql.URL.create("sqlite", database=text)
    url = sql.make_url(text)
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise InvalidInput(
            "A ledger is kept in SQLite or PostgreSQL: a path, sqlite:///path or "
            f"postgresql://user@host/name; got {url.get_backend_name()!r}."
        )
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def _prepare_sqlite(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # transactions begin below, not by themselves
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")


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
    """What the database said, in one line."""
    return " ".join(str(error.orig).split()).rstrip(".?")


def _refusal(url: sql.URL, error: DBAPIError) -> InvalidInput:
    code, lost = _code(error), error.connection_invalidated
    known = (advice for start, advice in _ADVICE.items() if code.startswith(start))
    told = next(known, f"{_words(error)}. {_UNCERTAIN if lost else _NOTHING}")
    return InvalidInput(f"{url.render_as_string(hide_password=True)}: {told}.")
