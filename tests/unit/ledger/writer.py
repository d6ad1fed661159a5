"""One of many writers: reserves, spends, crashes and settles at random. Run as a program.

python writer.py URL SEED OPERATIONS: prints each write that the ledger confirmed, as JSON lines.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys

from tightrope.errors import BudgetExceeded
from tightrope.ledger import open_ledger
from tightrope.process import NoisySGD, PoissonSampling


def say(**fact: object) -> None:
    print(json.dumps(fact), flush=True)


def main(url: str, seed: int, operations: int, crash: float) -> None:
    ledger, chance = open_ledger(url, who="writer"), random.Random(seed)
    held: dict[str, int] = {}
    for _ in range(operations):
        if chance.random() < crash:
            os.kill(os.getpid(), signal.SIGKILL)
        name = chance.choice(list(held)) if held else None
        deed = chance.choice(["reserve", "spend", "settle"]) if name else "reserve"
        try:
            if deed == "reserve":
                run = NoisySGD(PoissonSampling(0.01), 1.1, chance.randint(1, 60))
                name = ledger.reserve("people", run).id
                held[name] = 0
                say(deed=deed, id=name, steps=run.steps)
            elif deed == "spend" and name is not None:
                steps = ledger.book("people").reservation(name).steps
                held[name] = chance.randint(held[name], steps)
                ledger.spend("people", name, held[name])
                say(deed=deed, id=name, steps=held[name])
            elif name is not None:
                ledger.settle("people", name)
                say(deed=deed, id=name, steps=held.pop(name))
        except BudgetExceeded:
            say(deed="refused")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
