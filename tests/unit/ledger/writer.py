"""Many writers: each reserves, spends, crashes and settles at random. Run as a program.

python writer.py URL FOLDER WRITERS OPERATIONS CRASH KILL: every writer is a process of its own and
says in FOLDER what the ledger confirmed. CRASH: the chance to die before an operation. KILL:
seconds within which each is killed from outside, at a random moment; 0 for never.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from tightrope.errors import BudgetExceeded
from tightrope.ledger import open_ledger
from tightrope.ledger.book import what_would_fit
from tightrope.process import FullBatch, NoisySGD

RUN = NoisySGD(FullBatch(), 20.0, 60)


def write(ledger: Any, out: IO[str], chance: random.Random, operations: int, crash: float) -> None:
    def say(**fact: object) -> None:
        print(json.dumps(fact), file=out, flush=True)

    held: dict[str, int] = {}
    for _ in range(operations):
        if chance.random() < crash:
            os.kill(os.getpid(), signal.SIGKILL)
        name = chance.choice(list(held)) if held else ""
        deed = chance.choice(["reserve", "spend", "settle"]) if name else "reserve"
        try:
            if deed == "reserve":
                run = replace(RUN, steps=chance.randint(1, 60))
                name = ledger.reserve("people", run).id
                held[name] = 0
                say(deed=deed, id=name, steps=run.steps)
            elif deed == "spend":
                steps = ledger.book("people").reservation(name).steps
                held[name] = chance.randint(held[name], steps)
                ledger.spend("people", name, held[name])
                say(deed=deed, id=name, steps=held[name])
            else:
                ledger.settle("people", name, held[name])
                say(deed=deed, id=name, steps=held.pop(name))
        except BudgetExceeded:
            say(deed="refused")


def forked(ledger: Any, path: Path, seed: int, operations: int, crash: float) -> int:
    """The id of a new process, which knows the log so far; numpy and all are there already."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        with path.open("w") as out:
            write(ledger, out, random.Random(seed), operations, crash)
        status = 0
    finally:
        os._exit(status)


def main(url: str, folder: str, writers: int, operations: int, crash: float, kill: float) -> None:
    chance = random.Random(writers)
    ledger = open_ledger(url, who="writer")
    # what is imported late, and what is remembered, is so for all writers
    what_would_fit(RUN, ledger.book("people").excess)
    together = 8 if kill else writers
    for first in range(0, writers, together):
        seeds = range(first, min(first + together, writers))
        paths = [Path(folder) / f"{seed}.jsonl" for seed in seeds]
        ledger.book("people")
        children = [
            forked(ledger, p, s, operations, crash) for p, s in zip(paths, seeds, strict=True)
        ]
        for child in children if kill else []:
            time.sleep(chance.random() * kill / together)
            os.kill(child, signal.SIGKILL)
        for child in children:
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert ended in (0, -signal.SIGKILL), f"a writer ended with {ended}"


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:5]), *map(float, sys.argv[5:7]))  # type: ignore[call-arg]
