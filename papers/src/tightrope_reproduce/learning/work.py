"""Many runs: what is finished is skipped, what is left is shared among processes."""

from __future__ import annotations

import multiprocessing
import queue
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from tightrope.errors import TightropeError
from tightrope_reproduce.learning.recipe import Recipe
from tightrope_reproduce.learning.result import Store

__all__ = ["Job", "jobs_left", "work"]

Tell = Callable[[str], None]


@final
@dataclass(frozen=True)
class Job:
    recipe: Recipe
    seed: int

    def __str__(self) -> str:
        return f"{self.recipe.name} seed {self.seed}"


def jobs_left(recipes: Iterable[Recipe], seeds: Iterable[int], store: Store) -> list[Job]:
    """Unfinished runs, the first seeds first; within a seed the longest first."""
    chosen = sorted(recipes, key=lambda recipe: -recipe.steps)
    done = {recipe.name: store.finished(recipe) for recipe in chosen}
    return [Job(r, seed) for seed in seeds for r in chosen if seed not in done[r.name]]


def work(
    jobs: list[Job],
    store: Store,
    *,
    device: str = "cpu",
    folder: Path | None = None,
    processes: int = 1,
    no_new_after: float | None = None,
    tell: Tell = print,
) -> None:
    """Train every job and keep its result.

    no_new_after: seconds after which no further run is begun, for machines lent by the minute.
    """
    stop = None if no_new_after is None else time.time() + no_new_after
    if processes == 1:
        for job in jobs:
            if stop is None or time.time() < stop:
                _train(job, store, device, folder, tell)
        return
    context = multiprocessing.get_context("spawn")
    waiting: Any = context.Queue()
    for job in jobs:
        waiting.put(job)
    arguments = (waiting, store, device, folder, stop)
    workers = [context.Process(target=_worker, args=arguments) for _ in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise TightropeError(
            "A training process ended early (its own message is above). Finished runs are kept; "
            "start again to go on with the others."
        )


def _worker(
    waiting: Any, store: Store, device: str, folder: Path | None, stop: float | None
) -> None:
    import torch

    torch.set_num_threads(1)
    while stop is None or time.time() < stop:
        try:
            job = waiting.get(timeout=2.0)
        except queue.Empty:
            return
        _train(job, store, device, folder, print)


def _train(job: Job, store: Store, device: str, folder: Path | None, tell: Tell) -> None:
    from tightrope_reproduce.learning.learn import learn

    def on_epoch(done: int, epochs: float, value: float) -> None:
        if done % 10 == 0:
            tell(f"{job}: epoch {done} of {epochs:.0f}, {value:.3f}")

    result = learn(job.recipe, job.seed, device=device, folder=folder, on_epoch=on_epoch)
    store.add(result)
    tell(f"{job}: {result.final:.4f} after {job.recipe.steps} steps in {result.seconds:.0f} s")
