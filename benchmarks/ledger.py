"""The ledger beside a bare transaction of the same store: python benchmarks/ledger.py [URL ...]"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import sqlalchemy as sql

from tightrope.ledger import ALONG_THE_WAY, IN_ADVANCE, Terms, Total, create_ledger, open_ledger
from tightrope.ledger.book import Book
from tightrope.ledger.log import next_entry
from tightrope.ledger.meter import with_orders
from tightrope.ledger.views import standing_view
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.process.codec import to_json

RUN = NoisySGD(PoissonSampling(0.004), 1.3, 1)


def seconds(action: Callable[[], object], times: int) -> float:
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        action()
        found.append(time.perf_counter() - begun)
    return median(found)


def full_book(choices: str) -> Book:
    """1,000 past releases of 50 kinds."""
    chance, book = np.random.default_rng(1), Book()
    terms = with_orders(Terms("people", Total(epsilon=8.0, delta=1e-6), choices=choices))
    book.add(next_entry(book.head, {"kind": "add", "who": "ann", "terms": terms.to_json()}))
    rates, noises = chance.uniform(0.001, 0.01, 50), chance.uniform(1.0, 3.0, 50)
    for number in range(1000):
        run = NoisySGD(PoissonSampling(float(rates[number % 50])), float(noises[number % 50]), 10)
        body = {"kind": "reserve", "process": to_json(run), "price": list(book.priced(run))}
        more = {"id": str(number), "who": "ann", "at": 0.0, "note": ""}
        book.add(next_entry(book.head, body | more))
    return book


def decisions() -> None:
    for choices in (ALONG_THE_WAY, IN_ADVANCE):
        book = full_book(choices)
        noises = iter(np.linspace(1.0, 1.5, 1000).tolist())
        taken = seconds(
            lambda b=book, n=noises: b.reserve(NoisySGD(PoissonSampling(0.01), next(n), 10), "ann"),
            9,
        )
        print(
            f"| decision over 1,000 releases of 50 kinds, chosen {choices} | {taken * 1e3:.0f} ms |"
        )


def statuses(folder: Path) -> None:
    ledger = create_ledger(folder / "many.db")
    for number in range(100):
        ledger.add(Terms(f"data {number}", Total(epsilon=3.0, delta=1e-6)))
        for _ in range(3):
            ledger.reserve(f"data {number}", RUN)
    fresh = open_ledger(folder / "many.db")
    taken = seconds(lambda: [standing_view(fresh, name) for name in fresh.names()], 1)
    print(f"| status of 100 data sets, first look | {taken * 1e3:.0f} ms |")


def throughput(url: str) -> None:
    ledger = create_ledger(url)
    ledger.add(Terms("people", Total(epsilon=8.0, delta=1e-6)))
    ledger.store.run(["CREATE TABLE bare (number INTEGER PRIMARY KEY, content TEXT)"])
    numbers = iter(range(10**9))

    def bare() -> None:
        with ledger.store._alone("bare") as connection, connection.begin():
            row = {"number": next(numbers), "content": "x" * 300}
            connection.execute(sql.text("INSERT INTO bare VALUES (:number, :content)"), row)

    held = ledger.reserve("people", RUN)
    plain, spent = seconds(bare, 200), seconds(lambda: ledger.spend("people", held.id, 1), 200)
    reserved = seconds(lambda: ledger.settle("people", ledger.reserve("people", RUN).id), 100)
    store = "SQLite" if ledger.store.is_sqlite else "PostgreSQL"
    print(f"| {store}: bare transaction | {plain * 1e3:.2f} ms |")
    print(f"| {store}: spend | {spent * 1e3:.2f} ms ({spent / plain:.1f} times) |")
    print(
        f"| {store}: reserve and settle | {reserved * 1e3:.2f} ms ({reserved / plain:.1f} times) |"
    )


if __name__ == "__main__":
    print("| what | median |\n| --- | --- |")
    with tempfile.TemporaryDirectory() as place:
        decisions()
        statuses(Path(place))
        for where in [str(Path(place) / "ledger.db"), *sys.argv[1:]]:
            throughput(where)
