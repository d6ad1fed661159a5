"""Many processes on one data set, some of which are killed: nothing overspent, nothing lost."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tightrope import account
from tightrope.ledger import Terms, Total, create_ledger, open_ledger
from tightrope.process import Sequence

WRITER = Path(__file__).with_name("writer.py")
PATIENCE_S = 600


def start(url: str, seed: int, operations: int, crash: float) -> subprocess.Popen[str]:
    command = [sys.executable, str(WRITER), url, str(seed), str(operations), str(crash)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(writer: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """What a writer was told by the ledger; it was killed, or came to its end, and no else."""
    out, errors = writer.communicate(timeout=PATIENCE_S)
    assert writer.returncode in (0, -9), errors
    return [json.loads(line) for line in out.splitlines() if line.endswith("}")]


def check(url: str, said: list[dict[str, Any]], epsilon: float) -> None:
    ledger = open_ledger(url)
    book = ledger.book("people")  # the chain holds
    for fact in said:  # nothing that was confirmed is lost
        if fact["deed"] == "refused":
            continue
        kept = book.reservation(fact["id"])
        assert fact["steps"] <= {"reserve": kept.steps, "spend": kept.spent}.get(
            fact["deed"], kept.settled or 0
        )
    assert ledger.standing("people").share <= 1.0  # nothing is overspent
    counted = [
        replace(held.process, steps=steps)
        for held in book.reservations.values()
        if (steps := held.steps if held.settled is None else held.settled)
    ]
    assert account(Sequence(tuple(counted))).epsilon(1e-5).upper <= epsilon


def test_a_few_writers(url: str) -> None:
    create_ledger(url).add(Terms("people", Total(epsilon=1.0, delta=1e-5)))
    writers = [start(url, seed, 12, 0.02) for seed in range(4)]
    said = [fact for writer in writers for fact in ended(writer)]
    assert any(fact["deed"] == "reserve" for fact in said)
    check(url, said, 1.0)


@pytest.mark.slow
def test_sixty_four_writers(url: str) -> None:
    create_ledger(url).add(Terms("people", Total(epsilon=1.0, delta=1e-5)))
    writers = [start(url, seed, 40, 0.01) for seed in range(64)]
    said = [fact for writer in writers for fact in ended(writer)]
    assert any(fact["deed"] == "refused" for fact in said)
    check(url, said, 1.0)


@pytest.mark.slow
def test_a_thousand_kills(url: str) -> None:
    """SIGKILL from outside, over all moments of a writer's life."""
    create_ledger(url).add(Terms("people", Total(epsilon=30.0, delta=1e-5)))
    chance, said = random.Random(1), []
    for batch in range(125):
        writers = [start(url, 1000 * batch + seed, 10**6, 0.0) for seed in range(8)]
        time.sleep(1.5 + chance.random())
        for writer in writers:
            time.sleep(chance.random() * 0.02)
            writer.kill()
        said += [fact for writer in writers for fact in ended(writer)]
        ledger = open_ledger(url)
        for held in ledger.book("people").reservations.values():
            if held.open:  # so that there is always something to reserve
                ledger.settle("people", held.id)
        ledger.close()
    check(url, said, 30.0)
