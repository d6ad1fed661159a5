"""The files of a ledger: read by groups, replaced by no mistake; URLs and their passwords."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from typer.testing import CliRunner

from tightrope.cli.ledger_command import app
from tightrope.errors import InvalidInput, TightropeError
from tightrope.ledger import Terms, Total, create_ledger, open_ledger
from tightrope.ledger.store import Store, _config, shown
from tightrope.process import NoisySGD, PoissonSampling

RUN = NoisySGD(PoissonSampling(0.01), 1.1, 400)
TERMS = Terms("people", Total(epsilon=3.0, delta=1e-5))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = create_ledger(tmp_path / "ledger.db", who="ann")
    made.add(TERMS)
    made.close()
    return tmp_path / "ledger.db"


def refusal(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code != 0 and isinstance(done.exception, TightropeError), done.output
    return str(done.exception)


# ---- who may only read
def as_a_reader(act: Callable[[], str]) -> str:
    """In a process of an account that may write nothing there."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            os.write(write, act().encode())
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as answer:
        return answer.read()


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A ledger in a folder that other accounts can reach; those of pytest are closed to them."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        made = create_ledger(Path(folder) / "ledger.db", who="ann")
        made.add(TERMS)
        made.close()
        yield Path(folder) / "ledger.db"


def given_to_read(path: Path) -> None:
    for file in path.parent.iterdir():
        file.chmod(0o444)
    path.parent.chmod(0o555)


def test_who_may_only_read_reads(open_path: Path) -> None:
    given_to_read(open_path)
    try:
        names = as_a_reader(lambda: ",".join(open_ledger(open_path, who="eve").names()))
        assert names == "people"
        share = as_a_reader(lambda: str(open_ledger(open_path, who="eve").standing("people").share))
        assert share == "0.0"
        told = as_a_reader(lambda: open_ledger(open_path, who="eve").reserve("people", RUN).id)
        assert "read-only: nothing was written" in told
    finally:
        open_path.parent.chmod(0o755)


def test_who_may_only_read_sees_what_a_writer_has_just_written(open_path: Path) -> None:
    writer = open_ledger(open_path, who="ann")
    writer.reserve("people", RUN)  # in the log beside the file, which the writer has open
    open_path.chmod(0o644)
    given_to_read(open_path)
    try:
        count = as_a_reader(lambda: str(open_ledger(open_path, who="eve").standing("people").open))
        assert count == "1"
    finally:
        open_path.parent.chmod(0o755)
        for file in open_path.parent.iterdir():
            file.chmod(0o644)
        writer.close()


def test_a_file_that_changes_while_it_is_read_is_read_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tightrope.ledger.store._path_to_read", lambda url: str(path))
    reader = Store(path)
    monkeypatch.undo()
    writers, asked = list[Any](), list[int]()

    def ask(connection: Any) -> list[Any]:
        asked.append(1)
        found = connection.exec_driver_sql("SELECT number FROM tightrope_entries").all()
        if len(asked) == 1:
            writers.append(open_ledger(path, who="ann"))
            writers[0].reserve("people", RUN)
        return list(found)

    assert len(reader._read(ask)) == 2 and len(asked) == 2
    writers[0].close()


# ---- what the store refuses
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT OR REPLACE INTO tightrope_entries VALUES ('people', 1, 'x', 'y', NULL)",
        "REPLACE INTO tightrope_entries VALUES ('people', 1, 'x', 'y', NULL)",
        "INSERT OR IGNORE INTO tightrope_entries VALUES ('people', 1, 'x', 'y', NULL)",
        "INSERT OR REPLACE INTO tightrope_entries (rowid, dataset, number, content, chain) "
        "VALUES (1, 'people', 2, 'x', 'y')",
        "INSERT INTO tightrope_entries VALUES ('people', 1, 'x', 'y', NULL) "
        "ON CONFLICT DO UPDATE SET content = 'x'",
        "UPDATE OR REPLACE tightrope_entries SET content = 'x'",
        "INSERT INTO tightrope_entries VALUES ('people', 3, 'x', 'y', NULL)",
        "INSERT INTO tightrope_entries VALUES ('new', 2, 'x', 'y', NULL)",
        "INSERT INTO tightrope_entries VALUES ('new', 'one', 'x', 'y', NULL)",
    ],
)
def test_no_statement_changes_or_skips_an_entry(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as by_hand:
        before = by_hand.execute("SELECT * FROM tightrope_entries").fetchall()
        with pytest.raises(sqlite3.IntegrityError, match="never changed"):
            by_hand.execute(statement)
        assert by_hand.execute("SELECT * FROM tightrope_entries").fetchall() == before


def test_a_ledger_of_before_is_brought_up_to_date(tmp_path: Path, url: str) -> None:
    from alembic import command

    store, config = Store(url), _config()
    with store._alone_as_owner() as connection, connection.begin():
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    with pytest.raises(InvalidInput, match="made by an older version"):
        open_ledger(url)
    store.create()
    ledger = open_ledger(url, who="ann")
    ledger.add(TERMS)
    ledger.reserve("people", RUN)
    with pytest.raises(InvalidInput, match="follow each other"):
        store.run(["INSERT INTO tightrope_entries VALUES ('new', 2, 'x', 'y', NULL)"])
    ledger.close()
    store.close()


# ---- what is written beside it
def test_an_export_writes_over_nothing_unless_forced(path: Path, tmp_path: Path) -> None:
    at = ["--ledger", str(path)]
    other = tmp_path / "other.json"
    other.write_text("precious")
    assert "--force" in refusal("export", "--out", str(other), *at)
    assert other.read_text() == "precious"
    (tmp_path / "link").symlink_to(path)
    for own in (path, tmp_path / "link"):
        for force in ([], ["--force"]):
            assert "is the ledger itself" in refusal("export", "--out", str(own), *force, *at)
    assert open_ledger(path).names() == ["people"]
    done = CliRunner().invoke(app, ["export", "--out", str(other), "--force", *at])
    assert done.exit_code == 0 and "people" in json.loads(other.read_text())["logs"]


def test_an_export_is_not_written_through_a_link(path: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "all.json"
    target.write_text("precious")
    link.symlink_to(target)
    done = CliRunner().invoke(app, ["export", "--out", str(link), "--force", "--ledger", str(path)])
    assert done.exit_code == 0 and target.read_text() == "precious" and not link.is_symlink()


def test_heads_are_kept_through_no_link_that_waited(path: Path, tmp_path: Path) -> None:
    """In a folder that others may write to."""
    shared, target = tmp_path / "shared", tmp_path / "target"
    shared.mkdir()
    target.write_text("precious")
    heads = shared / "heads.json"
    (shared / "heads.json.new").symlink_to(target)
    ledger = open_ledger(path, who="ann", heads=heads)
    ledger.reserve("people", RUN)
    assert target.read_text() == "precious" and "people" in json.loads(heads.read_text())
    heads.chmod(0o640)
    ledger.reserve("people", RUN)
    assert heads.stat().st_mode & 0o777 == 0o640, "who may read them stays so"
    (shared / "heads.json.lock").unlink()
    (shared / "heads.json.lock").symlink_to(target)
    with pytest.raises(InvalidInput, match="was not"):
        ledger.reserve("people", RUN)


def test_heads_are_an_ordinary_file(path: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for heads in ("/dev/zero", tmp_path / "pipe", tmp_path):
        with pytest.raises(InvalidInput, match="not an ordinary file"):
            open_ledger(path, heads=heads)


def test_a_certificate_to_settle_with_is_named_where_it_cannot_be_read(path: Path) -> None:
    at = ["--ledger", str(path), "--certificate", "/dev/zero"]
    assert "/dev/zero cannot be read" in refusal("settle", "people", "x", *at)


# ---- what a URL may be, and what of it is shown
@pytest.mark.parametrize(
    "url",
    [
        "://",
        "postgresql://ann:SECRET@@127.0.0.1:x/x",
        "postgresql://ann:SECRET@127.0.0.1:99999999999/x",
        "postgresql+psycopg2://ann:SECRET@127.0.0.1/x",
        "postgresql+none://ann:SECRET@127.0.0.1/x",
        "sqlite+none:///x?password=SECRET",
        "mysql://ann:SECRET@somewhere/x",
        "sqlite://host/x",
        "postgresql://127.0.0.1:1/x?password=SECRET&nonsense=3",
        "postgresql://ann@127.0.0.1:1/x?PASSWORD=SECRET",
        "postgresql://ann@127.0.0.1:1/x?password=SECRET",
        "postgresql://ann:SECRET@127.0.0.1:1/x?sslpassword=SECRET",
    ],
)
def test_an_odd_url_is_refused_in_words_without_its_password(url: str) -> None:
    for words in (["status"], ["init"], ["add", "x", "--mu", "1"]):
        told = refusal(*words, "--ledger", url)
        assert "SECRET" not in told and told


def test_a_password_in_the_query_is_not_shown() -> None:
    import sqlalchemy as sql

    url = sql.make_url("postgresql+psycopg://a:b@h:1/d?password=SECRET&application_name=x")
    assert "SECRET" not in shown(url) and ":b@" not in shown(url)
    assert "application_name=x" in shown(url) and "***" in shown(url)


def test_init_does_not_print_a_password(server: str) -> None:
    import sqlalchemy as sql

    where = sql.make_url(server)
    engine = sql.create_engine(where, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sql.text("CREATE DATABASE queried"))
    engine.dispose()
    url = where.set(database="queried").update_query_dict({"password": "TOPSECRET"})
    given = url.render_as_string(hide_password=False)
    done = CliRunner().invoke(app, ["init", "--ledger", given])
    assert done.exit_code == 0 and "TOPSECRET" not in done.output, done.output
