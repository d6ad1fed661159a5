"""Accounts of PostgreSQL: what one of them writes harms no data set but its own budget."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

import sqlalchemy as sql
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tightrope.cli.ledger_command import app
from tightrope.errors import InvalidInput
from tightrope.ledger import Terms, Total, create_ledger, open_ledger
from tightrope.ledger.log import START, canonical, next_entry
from tightrope.ledger.store import grant_roles
from tightrope.ledger.terms import skeleton
from tightrope.ledger.views import page_app
from tightrope.process import NoisySGD, PoissonSampling

RUN = NoisySGD(PoissonSampling(0.01), 1.1, 400)
TERMS = Terms("people", Total(epsilon=3.0, delta=1e-5))
NUMBERS = count()
Urls = Callable[[str], str]


@pytest.fixture
def urls(server: str) -> Iterator[Urls]:
    """A ledger of its own, with the accounts rea, ann (spends) and olaf (owns)."""
    where = sql.make_url(server)
    name = f"accounts_{next(NUMBERS)}"
    engine = sql.create_engine(where, isolation_level="AUTOCOMMIT")
    accounts = {"rea": "tightrope_reader", "ann": "tightrope_spender", "olaf": "tightrope_owner"}
    with engine.connect() as connection:
        connection.execute(sql.text(f"CREATE DATABASE {name}"))
        for account in accounts:
            connection.execute(sql.text(f"DROP ROLE IF EXISTS {account}"))
            connection.execute(sql.text(f"CREATE ROLE {account} LOGIN"))

    def url(account: str) -> str:
        there = where.set(database=name, username=account)
        return there.render_as_string(hide_password=False)

    owner = create_ledger(url("owner"))
    grant_roles(owner.store)
    owner.store.run([f"GRANT {role} TO {account}" for account, role in accounts.items()])
    open_ledger(url("olaf")).add(TERMS)
    yield url
    with engine.connect() as connection:
        connection.execute(sql.text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


def written_by_hand(url: str, dataset: str, number: int, **body: Any) -> None:
    """An INSERT of an account that knows the rules of the database."""
    content = canonical(body | {"dataset": dataset})
    entry = next_entry(START, body | {"dataset": dataset})
    engine = sql.create_engine(url)
    row = {"d": dataset, "n": number, "content": content, "chain": entry.head.chain}
    try:
        with engine.begin() as connection:
            connection.execute(
                sql.text("INSERT INTO tightrope_entries VALUES (:d, :n, :content, :chain, NULL)"),
                row,
            )
    finally:
        engine.dispose()


def command(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    return done.exit_code, done.stdout


@pytest.mark.parametrize("name", ["", "a\x1b[2Jb", "new", "x" * 201])
@pytest.mark.parametrize("number", [1, 2])
def test_a_spender_begins_no_data_set(urls: Urls, name: str, number: int) -> None:
    for kind in ("reserve", "spend", "settle"):
        with pytest.raises(sql.exc.DBAPIError):
            written_by_hand(urls("ann"), name, number, kind=kind, who="ann")
    open_ledger(urls("olaf")).add(Terms("new", Total(mu=1.0)))


def test_a_name_that_cannot_be_shown_hides_no_other_data_set(urls: Urls, tmp_path: Path) -> None:
    with pytest.raises(sql.exc.DBAPIError):
        written_by_hand(urls("olaf"), "", 1, kind="add", who="olaf")
    owner = open_ledger(urls("owner"))
    owner.store.run(["ALTER TABLE tightrope_entries DROP CONSTRAINT tightrope_names"])
    for name in ("", "a\x1b[2Jb"):  # as in a ledger of before
        written_by_hand(urls("olaf"), name, 1, kind="add", who="olaf")
    at = ["--ledger", urls("rea")]
    code, told = command("status", *at)
    assert code == 1 and "people: 100.0 % left" in told and "\x1b" not in told
    assert told.count("DAMAGED") == 2
    code, told = command("status", "--json", *at)
    assert code == 1 and len(json.loads(told)) == 3
    code, _ = command("export", "--out", str(tmp_path / "all.json"), *at)
    exported = json.loads((tmp_path / "all.json").read_text())
    assert code == 1 and list(exported["logs"]) == ["people"] and len(exported["damaged"]) == 2
    page = TestClient(page_app(open_ledger(urls("rea"))), base_url="http://127.0.0.1").get("/")
    assert page.status_code == 200 and "100.0 % left" in page.text and "\x1b" not in page.text
    owner.store.create()  # the tables of a poisoned ledger can still be brought up to date


def test_one_damaged_log_hides_no_other(urls: Urls, tmp_path: Path) -> None:
    open_ledger(urls("olaf")).add(Terms("other", Total(mu=1.0)))
    written_by_hand(urls("ann"), "people", 2, kind="settle", who="ann")
    at = ["--ledger", urls("rea")]
    code, told = command("status", *at)
    assert code == 1 and "other: 100.0 % left" in told and "'people': DAMAGED" in told
    code, _ = command("export", "--out", str(tmp_path / "all.json"), *at)
    exported = json.loads((tmp_path / "all.json").read_text())
    assert (
        code == 1
        and list(exported["logs"]) == ["other"]
        and list(exported["damaged"]) == ["people"]
    )


def test_the_log_names_who_logged_in_whatever_role_was_put_on(urls: Urls) -> None:
    ann = open_ledger(urls("ann"))
    ann.store.run(["ALTER ROLE ann SET role = 'tightrope_spender'"])
    ann.close()
    held = open_ledger(urls("ann")).reserve("people", RUN)
    assert open_ledger(urls("rea")).book("people").reservation(held.id).who == "ann"
    with pytest.raises(sql.exc.DBAPIError):
        written_by_hand(urls("ann"), "people", 3, kind="spend", who="tightrope_spender")


def test_a_reader_keeps_no_writer_waiting(urls: Urls) -> None:
    """Neither by an advisory lock, as writers once took it, nor by the rows that they lock now."""
    import zlib

    engine = sql.create_engine(urls("rea"))
    key = (7410 << 32) + zlib.crc32(b"people")
    with engine.connect() as reader:
        reader.execute(sql.text("SELECT pg_advisory_lock(:key)"), {"key": key})
        reader.execute(sql.text("SELECT * FROM tightrope_entries"))
        begun = time.monotonic()
        open_ledger(urls("ann")).reserve("people", RUN)
        assert time.monotonic() - begun < 20.0, "a writer waits 60 seconds for its turn"
    for statement in (
        "SELECT id FROM tightrope_turns FOR UPDATE",
        "LOCK TABLE tightrope_turns IN EXCLUSIVE MODE",
        "LOCK TABLE tightrope_entries IN ROW EXCLUSIVE MODE",
        "SELECT number FROM tightrope_entries FOR UPDATE",
    ):
        with engine.connect() as reader, pytest.raises(sql.exc.DBAPIError):
            reader.execute(sql.text(statement))
    engine.dispose()


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        ("patients ", True),
        ("Patients", True),
        ("рatients", True),
        ("ｐａｔｉｅｎｔｓ", True),
        ("pati\u00e9nts", True),
        ("pat-ients", True),
        ("patients 2", False),
        ("clients", False),
    ],
)
def test_look_alike_names_are_remarked(other: str, alike: bool, tmp_path: Path) -> None:
    at = ["--ledger", str(tmp_path / "ledger.db")]
    command("init", *at)
    assert "looks like" not in command("add", "patients", "--mu", "1", *at)[1]
    code, _ = command("add", other, "--mu", "1", *at)
    assert code == 0, "it is another data set all the same"
    ledger = open_ledger(tmp_path / "ledger.db")
    assert ledger.alike(other) == (["patients"] if alike else [])


def test_composed_and_decomposed_letters_look_alike() -> None:
    assert skeleton("caf\u00e9") == skeleton("cafe\u0301") and skeleton("cafe") != skeleton("care")


def test_a_look_alike_is_remarked_by_the_command(tmp_path: Path) -> None:
    at = ["--ledger", str(tmp_path / "ledger.db")]
    command("init", *at)
    command("add", "patients", "--mu", "1", *at)
    done = CliRunner().invoke(app, ["add", "Patients", "--mu", "1", *at])
    assert "looks like" in done.output and "their losses add up" in done.output.replace("\n", " ")


def test_a_table_of_the_same_name_deceives_no_trigger(urls: Urls) -> None:
    engine = sql.create_engine(urls("ann"))
    content = canonical({"kind": "spend", "who": "ann", "dataset": "new"})
    with engine.connect() as ann, pytest.raises(sql.exc.DBAPIError, match="follow each other"):
        ann.execute(sql.text("CREATE TEMP TABLE tightrope_entries (dataset text, number bigint)"))
        ann.execute(sql.text("INSERT INTO pg_temp.tightrope_entries VALUES ('new', 1)"))
        ann.execute(
            sql.text("INSERT INTO public.tightrope_entries VALUES ('new', 2, :c, 'x', NULL)"),
            {"c": content},
        )
    engine.dispose()


def test_an_entry_that_skips_one_is_refused(urls: Urls) -> None:
    with pytest.raises(InvalidInput, match="follow each other"):
        open_ledger(urls("owner")).store.run(
            ["INSERT INTO tightrope_entries VALUES ('people', 5, 'x', 'y', NULL)"]
        )
