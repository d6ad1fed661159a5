"""Run by test_connected_elsewhere.py under torchrun with two gloo processes: URL FOLDER."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.errors import BudgetExceeded
from tightrope.train import (
    Budget,
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    RunFolder,
    noise_for,
    noisy_sgd,
)


def make_run(budget: Budget, noise: GaussianNoise) -> Any:
    return noisy_sgd(
        nn.Linear(4, 2),
        learning_rate=0.1,
        sampler=PoissonSampler(0.1),
        clip=FlatClip(1.0),
        noise=noise,
        expected_batch_size=4,
        budget=budget,
    )


def train(run: Any, data: Any, steps: int) -> None:
    for x, y in run.batches(data, steps=steps):
        run.step(cross_entropy(run.model(x), y, reduction="none"))


def main(url: str, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(3))[rank::2]
    data = (x, (x[:, 0] > 0).long())
    # only rank 0 can reach the ledger
    budget = Budget(ledger=url if rank == 0 else "/nowhere/at/all.db", dataset="people")
    first = make_run(budget, GaussianNoise(2.0))
    first.plan(20)
    store = RunFolder(folder)
    store.attach(first, data)
    train(first, data, 5)
    store.save()
    store.close()
    again = make_run(budget, GaussianNoise(2.0))  # as after a crash
    RunFolder(folder).attach(again, data)
    train(again, data, 7)
    assert again.steps == 12, again.steps
    again.settle()
    try:
        train(make_run(budget, GaussianNoise(0.5)), data, 10_000)
    except BudgetExceeded:
        (folder / f"refused-{rank}").touch()
    noise = noise_for(budget, PoissonSampler(0.1), steps=3)
    last = make_run(budget, noise)
    train(last, data, 3)
    last.settle()
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process that ends in the ordinary way


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
