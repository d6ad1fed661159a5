"""Several models side by side: all of them compile at once, and each is measured alone.

A process for each model makes its steps ready, which takes minutes of a processor and little of a
GPU. Whoever is ready is measured in its turn, while all other processes, and those that compile for
them, are stopped (SIGSTOP): nothing else launches, compiles or computes meanwhile.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from training_tables import Result, Results

Work = Callable[[str, argparse.Namespace, "Turns"], None]
Show = Callable[[str, Result], None]
_FAREWELL = 5.0  # seconds for a process that has closed its pipe to end by itself


@dataclass
class Turns:
    """What a model's process tells the others."""

    pipe: Connection | None = None

    def mine(self) -> bool:
        """Returns when all others are stopped. Does no process with memory remain?"""
        if self.pipe is None:
            return True
        self.pipe.send("ready")
        return bool(self.pipe.recv())

    def tell(self, result: Result) -> None:
        """What is known so far. The others go on when this process has ended and given its room."""
        if self.pipe is not None:
            self.pipe.send(result)


@dataclass(eq=False)
class _Worker:
    name: str
    process: Any
    after: int = 0  # so many others must have ended before its next turn
    asked: int = 0

    def signal(self, number: int) -> None:
        """To all processes of the model."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:  # it has only just started and is alone, or has ended
            if self.process.is_alive():
                os.kill(self.process.pid, number)


class _Round:
    """Who works, who waits, and who is being measured."""

    def __init__(self, work: Work, names: list[str], options: argparse.Namespace) -> None:
        context = multiprocessing.get_context("spawn")
        self.workers: dict[Connection, _Worker] = {}
        self.results: Results = {}
        self._waiting: list[tuple[Connection, _Worker]] = []
        self._measured: _Worker | None = None
        self._ended = 0
        self._start = time.monotonic()
        for name in names:
            ours, theirs = context.Pipe()
            process = context.Process(target=_begin, args=(work, name, options, Turns(theirs)))
            process.start()
            theirs.close()  # so that its end is seen here
            self.workers[ours] = _Worker(name, process)

    def hear(self, pipe: Connection, show: Show) -> None:
        worker = self.workers[pipe]
        try:
            message = pipe.recv()
        except (EOFError, ConnectionError):
            self._end(pipe, worker)
            return
        if message == "ready":
            self._ask(pipe, worker)
        else:
            first = worker.name not in self.results
            self.results[worker.name] = message
            if first:
                show(worker.name, message)

    def next_turn(self) -> None:
        """The first that waits is measured, while the others are stopped."""
        if self._measured is not None:
            return
        alone = len(self.workers) == 1
        for place, (pipe, worker) in enumerate(self._waiting):
            if alone or worker.after <= self._ended:
                del self._waiting[place]
                self._measured = worker
                for other in self.workers.values():
                    if other is not worker:
                        other.signal(signal.SIGSTOP)
                with suppress(ConnectionError):
                    pipe.send(alone)
                return
        if self._waiting and len(self._waiting) == len(self.workers):
            self._waiting[-1][1].signal(signal.SIGKILL)  # makes room for the others

    def stop(self) -> None:
        for worker in self.workers.values():
            worker.signal(signal.SIGKILL)
        for worker in self.workers.values():
            worker.process.join()

    def _ask(self, pipe: Connection, worker: _Worker) -> None:
        """Who asks again found no room: others must have ended before."""
        if self._measured is worker:
            self._go_on()
        worker.after = self._ended + 1 if worker.asked else 0
        worker.asked += 1
        self._waiting.append((pipe, worker))
        again = " again, without room" if worker.asked > 1 else ""
        print(f"{worker.name}: ready{again} after {self.seconds:.0f} s", flush=True)

    def _end(self, pipe: Connection, worker: _Worker) -> None:
        worker.process.join(_FAREWELL)
        worker.signal(signal.SIGKILL)  # what may be left of those who compiled for it
        worker.process.join()
        del self.workers[pipe]
        self._waiting = [(p, w) for p, w in self._waiting if w is not worker]
        self._ended += 1
        if self._measured is worker:
            self._go_on()
        if worker.name not in self.results:
            why = f"its process ended with exit code {worker.process.exitcode}"
            self.results[worker.name] = nothing(why)
            print(f"{worker.name}: {why}", flush=True)

    def _go_on(self) -> None:
        self._measured = None
        for worker in self.workers.values():
            worker.signal(signal.SIGCONT)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start


def side_by_side(
    work: Work, names: list[str], options: argparse.Namespace, minutes: float, show: Show
) -> Results:
    """Results in the order of the names; what is missing after so many minutes says so."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    end = time.monotonic() + 60 * minutes
    at_work = _Round(work, names, options)
    try:
        while at_work.workers and (left := end - time.monotonic()) > 0:
            for pipe in wait(list(at_work.workers), timeout=left):
                at_work.hear(pipe, show)  # type: ignore[arg-type]
            at_work.next_turn()
    finally:
        at_work.stop()
        signal.signal(signal.SIGTERM, before)
    late = nothing(f"not measured after {minutes:g} minutes")
    return {name: at_work.results.get(name, late) for name in names}


def nothing(why: str) -> Result:
    return {"times": {}, "failures": {"all": why}}


def _begin(work: Work, name: str, options: argparse.Namespace, turns: Turns) -> None:
    os.setpgid(0, 0)  # so that it is stopped together with those who compile for it
    work(name, options, turns)
