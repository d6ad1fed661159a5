"""Attempts to overspend, to lose, to hide: by copies, threads, forks, forged entries, odd names."""

from __future__ import annotations

import math
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tightrope.errors import BudgetExceeded, InvalidInput, LedgerDamaged
from tightrope.ledger import IN_ADVANCE, Terms, Total, create_ledger, open_ledger
from tightrope.ledger.log import LogEntry, next_entry
from tightrope.ledger.store import grant_roles
from tightrope.process import (
    DeclaredRenyi,
    FullBatch,
    GaussianMechanism,
    NoisySGD,
    PoissonSampling,
    StoppedAtWill,
)
from tightrope.process.codec import to_json

RUN = NoisySGD(PoissonSampling(0.01), 1.1, 400)
PLAIN = NoisySGD(FullBatch(), 50.0, 100)
TERMS = Terms("people", Total(epsilon=3.0, delta=1e-5), spenders=("ann", "owner"))


@pytest.fixture
def ledger(url: str) -> Any:
    made = create_ledger(url, who="ann")
    made.add(TERMS)
    yield made
    made.close()


def test_a_reservation_of_which_nothing_was_announced_is_not_settled_for_nothing(
    ledger: Any,
) -> None:
    held = ledger.reserve("people", RUN)  # for another program, which tells the ledger nothing
    with pytest.raises(InvalidInput, match="Nothing was announced"):
        ledger.settle("people", held.id)
    ledger.settle("people", held.id, 400)
    assert ledger.standing("people").used > 0.0


def test_two_that_spend_one_reservation_are_told_apart(ledger: Any, url: str) -> None:
    held = ledger.reserve("people", RUN)
    other = open_ledger(url, who="ann")
    ledger.spend("people", held.id, 10, since=0)
    with pytest.raises(InvalidInput, match="another copy"):
        other.spend("people", held.id, 12, since=0)
    other.spend("people", held.id, 12, since=10)
    other.close()


def forge(ledger: Any, **body: Any) -> None:
    """What somebody writes by hand, with a chain that is right."""

    def made(found: list[LogEntry], account: str | None) -> LogEntry:
        facts = {"dataset": "people", "who": "ann", "at": 0.0, "note": ""}
        return next_entry(found[-1].head, facts | body)

    ledger.store.append("people", 0, made)


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "settle", "settled": 3, "certificate": None},
        {"kind": "settle", "settled": 401, "certificate": None},
        {"kind": "settle", "settled": 400, "certificate": None, "who": "eve"},
        {"kind": "spend", "spent": 3},
        {"kind": "spend", "spent": 401},
        {"kind": "spend", "spent": float("nan")},
        {"kind": "reserve", "process": to_json(RUN), "price": [0.0] * 5},  # the same name again
        {"kind": "reserve", "id": "b", "process": to_json(RUN), "price": []},
        {"kind": "reserve", "id": "b", "process": to_json(RUN), "price": [-1.0] * 5},
        {"kind": "reserve", "id": "b", "process": to_json(StoppedAtWill(RUN)), "price": [1.0] * 5},
        {"kind": "reserve", "id": "b", "process": to_json(RUN.group(2)), "price": [1.0] * 5},
        {"kind": "reserve", "id": "\x1b[2J", "process": to_json(RUN), "price": [1.0] * 5},
        {"kind": "reserve", "id": "b", "process": to_json(RUN), "price": [1.0] * 5, "who": "eve"},
    ],
)
def test_an_entry_that_nobody_would_have_decided_is_damage(
    tmp_path: Path, body: dict[str, Any]
) -> None:
    ledger = create_ledger(tmp_path / "ledger.db", who="ann")
    ledger.add(TERMS)
    held = ledger.reserve("people", RUN)
    ledger.spend("people", held.id, 7)
    try:
        forge(ledger, **{"id": held.id} | body)
    except ValueError:
        return  # not even written: no canonical content has a NaN
    for seen in (ledger, open_ledger(tmp_path / "ledger.db")):
        for _ in range(2):  # and it stays so
            with pytest.raises(LedgerDamaged, match="makes no sense"):
                seen.standing("people")


def test_a_price_that_was_made_up_is_found(tmp_path: Path) -> None:
    ledger = create_ledger(tmp_path / "ledger.db", who="ann")
    ledger.add(TERMS)
    ledger.reserve("people", RUN)
    ledger.book("people").check_prices()
    long = to_json(replace(RUN, steps=10**6))
    forge(ledger, kind="reserve", id="b", process=long, price=[1e-12] * 5)
    with pytest.raises(LedgerDamaged, match="states a price"):
        ledger.book("people").check_prices()


def test_the_log_of_another_data_set_is_refused(tmp_path: Path) -> None:
    ledger = create_ledger(tmp_path / "ledger.db")
    ledger.add(TERMS)
    ledger.store.run(
        [
            "INSERT INTO tightrope_entries (dataset, number, content, chain) "
            "SELECT 'staff', number, content, chain FROM tightrope_entries"
        ]
    )
    with pytest.raises(LedgerDamaged, match="that of 'people'"):
        ledger.standing("staff")


def test_threads_share_a_ledger(ledger: Any) -> None:
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                held = ledger.reserve("people", PLAIN)
                ledger.spend("people", held.id, 2)
                ledger.settle("people", held.id)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert ledger.standing("people").settled == 20


def test_a_forked_process_takes_connections_of_its_own(ledger: Any) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ledger.reserve("people", PLAIN)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ledger.reserve("people", PLAIN)
    assert ledger.standing("people").open == 2


def test_many_make_the_same_ledger_at_once(url: str) -> None:
    children = [os.fork()]
    while children[-1] and len(children) < 4:
        children.append(os.fork())
    if not children[-1]:
        status = 1
        try:
            made = create_ledger(url)
            grant_roles(made.store)
            made.add(TERMS)
            status = 0
        except InvalidInput as error:
            status = 2 if "in the ledger already" in str(error) else 1
        finally:
            os._exit(status)
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(ended) == [0, 2, 2, 2]


def test_a_data_set_that_vanished_is_missed(tmp_path: Path) -> None:
    heads = tmp_path / "heads.json"
    create_ledger(tmp_path / "ledger.db", heads=heads).add(TERMS)
    empty = create_ledger(tmp_path / "empty.db", heads=heads)
    assert empty.names() == ["people"]
    with pytest.raises(LedgerDamaged, match="rolled back"):
        empty.standing("people")


def test_heads_of_others_are_seen_while_a_ledger_is_open(tmp_path: Path) -> None:
    """The store is rolled back and written anew behind the back of a process that knew it."""
    heads, path = tmp_path / "heads.json", tmp_path / "ledger.db"
    early = create_ledger(path, heads=heads, who="ann")
    early.add(TERMS)
    late = open_ledger(path, heads=heads, who="ann")
    late.reserve("people", PLAIN)
    late.store.run(["DROP TRIGGER tightrope_entries_DELETE"])
    late.store.run(["DELETE FROM tightrope_entries WHERE number = 2"])
    for _ in range(2):
        with pytest.raises(LedgerDamaged, match="rolled back"):
            early.reserve("people", PLAIN)
    open_ledger(path, who="ann").reserve("people", PLAIN)  # keeps no heads: another entry 2
    for _ in range(2):
        with pytest.raises(LedgerDamaged, match="rolled back"):
            early.standing("people")


@pytest.mark.parametrize("content", ["[]", '{"people": ["a", 3]}', '{"people": 3}', "{"])
def test_heads_that_are_none(ledger: Any, url: str, tmp_path: Path, content: str) -> None:
    (tmp_path / "heads.json").write_text(content)
    with pytest.raises(InvalidInput, match="not a file of heads"):
        open_ledger(url, heads=tmp_path / "heads.json")
    with pytest.raises(InvalidInput, match="no folder"):
        open_ledger(url, heads=tmp_path / "none" / "heads.json")


@pytest.mark.parametrize("name", [3, None, "a\0b", "\ud800", "x" * 10_000, "", "‮elpoep"])
def test_odd_names_are_refused(ledger: Any, name: Any) -> None:
    for act in (lambda: ledger.reserve(name, RUN), lambda: ledger.standing(name)):
        with pytest.raises(InvalidInput, match="printable"):
            act()


def test_numbers_at_the_edge(ledger: Any) -> None:
    for wrong in (
        lambda: Terms("x", Total(mu=1e-200)),
        lambda: Terms("x", Total(mu=1e200)),
        lambda: Terms("x", Total(mu=math.nan)),
        lambda: Terms("x", Total(epsilon=math.inf, delta=1e-5)),
        lambda: Terms("x", Total(mu=1.0), spenders="ann"),  # type: ignore[arg-type]
        lambda: Terms("x", Total(mu=1.0), records=0),
    ):
        with pytest.raises(InvalidInput):
            wrong()
    with pytest.raises(BudgetExceeded, match="What would fit"):
        ledger.reserve("people", replace(RUN, steps=2**70))
    # finite at low orders alone: what is infinite is written, and read, as such
    held = ledger.reserve("people", DeclaredRenyi((2.0, 6.0), (0.01, 0.03)))
    assert math.inf in ledger.book("people").reservation(held.id).price
    assert 0.0 < ledger.standing("people").share < 1.0


@pytest.mark.parametrize("choices", ["along the way", IN_ADVANCE])
def test_the_unit_of_privacy_is_that_of_the_data_set(tmp_path: Path, choices: str) -> None:
    ledger = create_ledger(tmp_path / "ledger.db")
    total = Total(epsilon=3.0, delta=1e-5)
    ledger.add(Terms("records", total, choices=choices))
    ledger.add(Terms("people", total, choices=choices, records=2))
    with pytest.raises(InvalidInput, match=r"process\.group\(2\)"):
        ledger.reserve("people", PLAIN)
    with pytest.raises(InvalidInput, match="the run alone"):
        ledger.reserve("records", PLAIN.group(2))
    with pytest.raises(InvalidInput, match="at most 2 records"):
        ledger.reserve("people", PLAIN.group(3))
    one = ledger.reserve("records", PLAIN)
    two = ledger.reserve("people", PLAIN.group(2))
    assert ledger.standing("people").used > ledger.standing("records").used
    assert (one.steps, two.steps) == (100, 100)
    whole = ledger.standing("people").used
    ledger.settle("people", two.id, 50)
    used = ledger.standing("people").used
    assert used == whole if choices == IN_ADVANCE else used < 0.6 * whole
    with pytest.raises(BudgetExceeded, match="What would fit"):
        ledger.reserve("people", replace(PLAIN, steps=10**6).group(2))


def test_a_total_mu_knows_its_people(tmp_path: Path) -> None:
    ledger = create_ledger(tmp_path / "ledger.db")
    ledger.add(Terms("people", Total(mu=1.0), records=4))
    ledger.reserve("people", GaussianMechanism(4.0 * (1 + 1e-12)).group(4))
    with pytest.raises(BudgetExceeded):
        ledger.reserve("people", GaussianMechanism(1e4).group(4))
