"""The ledger beside a bare transaction of the same store: python benchmarks/ledger.py [URL ...]"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
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
WRITERS = 8


def seconds(
    action: Callable[[], object], times: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    found = []
    for _ in range(times):
        begun = clock()
        action()
        found.append(clock() - begun)
    return median(found)


def _both(action: Callable[[], object], times: int) -> str:
    """By the clock, and by the processor, which others use at the same time."""
    wall: list[float] = []
    own = seconds(lambda: wall.append(seconds(action, 1)), times, time.process_time)
    return f"{own * 1e3:.0f} ms of processor time, {median(wall) * 1e3:.0f} ms by the clock"


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

        def decide(book: Book = book, noises: Iterator[float] = noises) -> None:
            book.reserve(NoisySGD(PoissonSampling(0.01), next(noises), 10), "ann")

        label = f"decision over 1,000 releases of 50 kinds, chosen {choices}"
        print(f"| {label} | {_both(decide, 9)} |")


def statuses(folder: Path) -> None:
    ledger = create_ledger(folder / "many.db")
    for number in range(100):
        ledger.add(Terms(f"data {number}", Total(epsilon=3.0, delta=1e-6)))
        for _ in range(3):
            ledger.reserve(f"data {number}", RUN)
    fresh = open_ledger(folder / "many.db")
    label = _both(lambda: [standing_view(fresh, name) for name in fresh.names()], 1)
    print(f"| status of 100 data sets, first view | {label} |")


def alternately(actions: list[Callable[[], object]], times: int) -> list[float]:
    """Medians of actions that take turns: what others do to the machine, they do to all."""
    rounds = [[seconds(action, 1) for action in actions] for _ in range(times)]
    return [median(found) for found in zip(*rounds, strict=True)]


def crowd(action: Callable[[], object], times: int = 40) -> float:
    """Transactions a second of WRITERS processes at once."""
    begun, children = time.perf_counter(), []
    for _ in range(WRITERS):
        children.append(os.fork())
        if children[-1] == 0:
            for _ in range(times):
                action()
            os._exit(0)
    for child in children:
        os.waitpid(child, 0)
    return WRITERS * times / (time.perf_counter() - begun)


def throughput(url: str) -> None:
    ledger = create_ledger(url)
    ledger.add(Terms("people", Total(epsilon=8.0, delta=1e-6)))
    ledger.store.run(["CREATE TABLE bare (number TEXT PRIMARY KEY, content TEXT)"])

    def bare() -> None:
        with ledger.store._alone("bare") as connection, connection.begin():
            row = {"number": secrets.token_hex(8), "content": "x" * 300}
            connection.execute(sql.text("INSERT INTO bare VALUES (:number, :content)"), row)

    reserved = ledger.reserve("people", RUN)

    def spend() -> None:
        ledger.spend("people", reserved.id, 1)

    def reserve_and_settle() -> None:
        ledger.settle("people", ledger.reserve("people", RUN).id, 1)

    plain, spent, reserved = alternately([bare, spend, reserve_and_settle], 150)
    bares, spends = crowd(bare), crowd(spend)
    store = "SQLite" if ledger.store.is_sqlite else "PostgreSQL"
    print(f"| {store}: bare transaction | {plain * 1e3:.2f} ms |")
    print(f"| {store}: spend | {spent * 1e3:.2f} ms ({spent / plain:.1f} times) |")
    print(
        f"| {store}: reserve and settle | {reserved * 1e3:.2f} ms ({reserved / plain:.1f} times) |"
    )
    print(f"| {store}: bare transactions of {WRITERS} writers at once | {bares:.0f} a second |")
    print(f"| {store}: spends of {WRITERS} writers at once, one data set | {spends:.0f} a second |")


if __name__ == "__main__":
    print("| what | median |\n| --- | --- |")
    with tempfile.TemporaryDirectory() as place:
        decisions()
        statuses(Path(place))
        for where in [str(Path(place) / "ledger.db"), *sys.argv[1:]]:
            throughput(where)
