"""Stores to test on: a SQLite file, and a PostgreSQL server of our own where one is installed."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="the ledger needs: pip install 'tightrope[ledger]'")


def _binaries() -> Path | None:
    """Debian keeps the server's programs apart; elsewhere they may be on the path."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parent.name))
    found = shutil.which("initdb")
    return debian[-1] if debian else None if found is None else Path(found).parent


def _account() -> str | None:
    """PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    return None


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The URL of a real server, on loopback, with a folder and a user of its own."""
    programs, account = _binaries(), _account()
    if programs is None or (os.getuid() == 0 and account is None):
        pytest.skip("PostgreSQL's server is not installed (Debian: apt-get install postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="tightrope-pg-", dir="/tmp"))
    if account is not None:
        shutil.chown(folder, account)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    run = {"user": account, "check": True, "capture_output": True, "cwd": folder}
    data = folder / "data"
    initdb = [programs / "initdb", "-D", data, "-U", "owner", "-A", "trust", "-E", "UTF8"]
    subprocess.run([*initdb, "--no-sync", "--locale=C"], **run)  # type: ignore[call-overload]
    settings = f"-p {port} -c listen_addresses=127.0.0.1 -k {folder} -c max_connections=120"
    control = [programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", settings]
    subprocess.run([*control, "start"], **run)  # type: ignore[call-overload]
    try:
        yield f"postgresql+psycopg://owner@127.0.0.1:{port}/postgres"
    finally:
        stop = [programs / "pg_ctl", "-D", data, "-m", "immediate", "stop"]
        subprocess.run(stop, **(run | {"check": False}))  # type: ignore[call-overload]
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    import sqlalchemy as sql

    where = sql.make_url(request.getfixturevalue("server"))
    name = f"test_{os.getpid()}_{abs(hash(str(tmp_path))) % 10**9}"
    engine = sql.create_engine(where, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sql.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return where.set(database=name).render_as_string(hide_password=False)
