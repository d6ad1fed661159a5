"""Many processes on one data set, some of which are killed: nothing overspent, nothing lost."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tightrope import account
from tightrope.ledger import Terms, Total, create_ledger, open_ledger
from tightrope.process import Sequence

WRITER = Path(__file__).with_name("writer.py")
PATIENCE_S = 600


def said_by(
    url: str, folder: Path, writers: int, operations: int, crash: float = 0.0, kill: float = 0.0
) -> list[dict[str, Any]]:
    """What the writers were told by the ledger; a torn last line was not said."""
    asked = [url, folder, writers, operations, crash, kill]
    done = subprocess.run(
        [sys.executable, str(WRITER), *map(str, asked)],
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [
        line
        for path in folder.glob("*.jsonl")
        for line in path.read_text().splitlines(keepends=True)
    ]
    return [json.loads(line) for line in lines if line.endswith("}\n")]


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


def test_a_few_writers(url: str, tmp_path: Path) -> None:
    create_ledger(url).add(Terms("people", Total(epsilon=1.0, delta=1e-5)))
    said = said_by(url, tmp_path, 4, 25, crash=0.02)
    assert any(fact["deed"] == "reserve" for fact in said)
    check(url, said, 1.0)


@pytest.mark.slow
def test_sixty_four_writers(url: str, tmp_path: Path) -> None:
    create_ledger(url).add(Terms("people", Total(epsilon=1.0, delta=1e-5)))
    said = said_by(url, tmp_path, 64, 40, crash=0.01)
    assert any(fact["deed"] == "refused" for fact in said)
    check(url, said, 1.0)


@pytest.mark.slow
def test_a_thousand_kills(url: str, tmp_path: Path) -> None:
    """SIGKILL from outside, over all moments of a writer's life."""
    create_ledger(url).add(Terms("people", Total(epsilon=5000.0, delta=1e-5)))
    said = said_by(url, tmp_path, 1000, 10**6, kill=0.6)
    assert any(fact["deed"] == "settle" for fact in said)
    check(url, said, 5000.0)
