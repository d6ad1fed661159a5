"""The ledger on its stores: one log per data set, nothing half-written, nothing changed unseen."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from tightrope.errors import BudgetExceeded, InvalidInput, LedgerDamaged
from tightrope.ledger import IN_ADVANCE, Terms, Total, create_ledger, open_ledger
from tightrope.ledger.log import canonical
from tightrope.process import NoisySGD, PoissonSampling

RUN = NoisySGD(PoissonSampling(0.01), 1.1, 400)
TERMS = Terms("people", Total(epsilon=3.0, delta=1e-5))


@pytest.fixture
def ledger(url: str) -> Any:
    made = create_ledger(url, who="ann")
    made.add(TERMS)
    yield made
    made.close()


def test_what_is_written_is_read_by_others(ledger: Any, url: str) -> None:
    held = ledger.reserve("people", RUN, note="first try")
    ledger.spend("people", held.id, 40)
    other = open_ledger(url)
    seen = other.book("people").reservation(held.id)
    assert (seen.process, seen.note, seen.spent, seen.open) == (RUN, "first try", 40, True)
    other.settle("people", held.id, certificate="ab12")
    mine = ledger.book("people").reservation(held.id)
    assert (mine.settled, mine.certificate) == (40, "ab12")
    assert ledger.standing("people") == other.standing("people")
    assert [body["kind"] for body in ledger.history("people")] == [
        "add",
        "reserve",
        "spend",
        "settle",
    ]
    other.close()


def test_a_refusal_writes_nothing(ledger: Any) -> None:
    before = ledger.standing("people")
    with pytest.raises(BudgetExceeded, match=r"steps at noise 1\.1"):
        ledger.reserve("people", NoisySGD(PoissonSampling(0.01), 1.1, 10**6))
    for wrong in (
        lambda: ledger.add(TERMS),
        lambda: ledger.reserve("nobody", RUN),
        lambda: ledger.spend("people", "none", 1),
        lambda: ledger.book("nobody"),
        lambda: ledger.reserve("people", RUN, note="a\x1bb"),
    ):
        with pytest.raises(InvalidInput):
            wrong()
    assert ledger.standing("people") == before and ledger.names() == ["people"]


def test_both_compositions_are_kept(ledger: Any, url: str) -> None:
    ledger.add(Terms("survey", Total(epsilon=2.0, delta=1e-6), choices=IN_ADVANCE))
    held = ledger.reserve("survey", RUN)
    other = open_ledger(url)
    assert other.standing("survey").used == ledger.standing("survey").used > 0
    other.settle("survey", held.id, 5)
    assert other.standing("survey").used == ledger.standing("survey").used > 0
    other.close()


def test_entries_cannot_be_changed_in_the_store(ledger: Any) -> None:
    held = ledger.reserve("people", RUN)
    for statement in (
        "UPDATE tightrope_entries SET content = '{}'",
        "DELETE FROM tightrope_entries",
    ):
        with pytest.raises(InvalidInput, match="never changed"):
            ledger.store.run([statement])
    assert ledger.book("people").reservation(held.id).open


def test_an_edit_and_a_rollback_are_noticed(url: str, tmp_path: Path) -> None:
    if "://" in url:
        pytest.skip("a file is edited here")
    heads = tmp_path / "heads.json"
    ledger = create_ledger(url, heads=heads)
    ledger.add(TERMS)
    ledger.reserve("people", RUN)
    rolled = tmp_path / "before.db"
    with sqlite3.connect(url) as live, sqlite3.connect(rolled) as copy:
        live.backup(copy)
    ledger.reserve("people", RUN)
    with pytest.raises(LedgerDamaged, match="rolled back"):
        open_ledger(rolled, heads=heads).standing("people")
    with sqlite3.connect(url) as edited:
        edited.execute("DROP TRIGGER tightrope_entries_UPDATE")
        edited.execute(
            "UPDATE tightrope_entries SET content = replace(content, '400', '4') WHERE number = 2"
        )
    with pytest.raises(LedgerDamaged, match="does not follow"):
        open_ledger(url).standing("people")


def test_a_log_that_was_written_anew_is_noticed(url: str, tmp_path: Path) -> None:
    heads = tmp_path / "heads.json"
    first = create_ledger(url, heads=heads)
    first.add(TERMS)
    first.reserve("people", RUN)
    fresh = create_ledger(tmp_path / "fresh.db", heads=None)
    fresh.add(TERMS)
    fresh.reserve("people", RUN)
    with pytest.raises(LedgerDamaged):
        open_ledger(tmp_path / "fresh.db", heads=heads).standing("people")
    heads.write_text("[]")
    with pytest.raises(InvalidInput, match="not a file of heads"):
        open_ledger(url, heads=heads)


def test_versions_are_told_apart(ledger: Any, url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"ledger init"):
        open_ledger(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()
    for version, said in (("0000", "older"), ("9999", "newer")):
        ledger.store.run([f"UPDATE alembic_version SET version_num = '{version}'"])
        with pytest.raises(InvalidInput, match=said):
            open_ledger(url)


def test_stores_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database, " * 100)
    for wrong, said in (
        (tmp_path / "text.db", "not an SQLite file"),
        ("mysql://somewhere/x", "SQLite or PostgreSQL"),
    ):
        with pytest.raises(InvalidInput, match=said):
            open_ledger(wrong)


def test_a_full_store_and_a_read_only_one(tmp_path: Path) -> None:
    path = tmp_path / "small.db"
    create_ledger(path).add(TERMS)
    small = open_ledger(path)

    @sql.event.listens_for(small.store._engine, "connect")
    def _small(connection: Any, record: Any) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")

    small.store._engine.dispose()
    with pytest.raises(InvalidInput, match="full: nothing was written"):
        for _ in range(100):
            held = small.reserve("people", RUN, note="x" * 200)
            small.settle("people", held.id, 0)
    history = open_ledger(path).history("people")  # whole, and in its chain
    reader = open_ledger(f"sqlite:///file:{path}?mode=ro&uri=true")
    with pytest.raises(InvalidInput, match="read-only: nothing was written"):
        reader.reserve("people", RUN)
    assert reader.history("people") == history


def test_a_clock_that_jumps_moves_nothing(ledger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 4e9)
    first = ledger.reserve("people", RUN)
    monkeypatch.setattr("time.time", lambda: -1.0)
    second = ledger.reserve("people", RUN)
    assert ledger.standing("people").open == 2
    assert list(ledger.book("people").reservations) == [first.id, second.id]


def test_entries_are_signed_where_somebody_signs(url: str) -> None:
    signed = create_ledger(url, sign=lambda content: f"signed {content.decode()}")
    signed.add(TERMS)
    (entry,) = signed.store.entries("people")
    assert entry.signature == f"signed tightrope ledger {entry.head}"


def test_canonical_content_is_the_same_for_all_and_finite() -> None:
    assert canonical({"b": 1, "a": "é"}) == '{"a":"\\u00e9","b":1}'
    with pytest.raises(ValueError):
        canonical({"a": float("nan")})
