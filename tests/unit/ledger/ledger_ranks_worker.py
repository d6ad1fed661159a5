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
    noise_for,
    noisy_sgd,
)


def losses(model: Any, x: Any, y: Any) -> Any:
    return cross_entropy(model(x), y, reduction="none")


def make_run(budget: Budget, noise: GaussianNoise, data: Any, steps: int, **how: Any) -> Any:
    return noisy_sgd(
        nn.Linear(4, 2),
        data,
        losses,
        learning_rate=0.1,
        sampler=PoissonSampler(0.1),
        clip=FlatClip(1.0),
        noise=noise,
        expected_batch_size=4,
        budget=budget,
        steps=steps,
        **how,
    )


def train(run: Any, steps: int) -> None:
    for _ in range(steps):
        run.take_step()


def main(url: str, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(3))[rank::2]
    data = (x, (x[:, 0] > 0).long())
    # only rank 0 can reach the ledger
    budget = Budget(ledger=url if rank == 0 else "/nowhere/at/all.db", dataset="people")
    first = make_run(budget, GaussianNoise(2.0), data, 20, folder=folder)
    train(first, 5)
    first.folder.save()
    first.folder.close()
    again = make_run(budget, GaussianNoise(2.0), data, 20, folder=folder)  # as after a crash
    train(again, 7)
    assert again.steps == 12, again.steps
    again.close()
    try:
        train(make_run(budget, GaussianNoise(0.5), data, 10_000), 1)
    except BudgetExceeded:
        (folder / f"refused-{rank}").touch()
    noise = noise_for(budget, PoissonSampler(0.1), steps=3)
    last = make_run(budget, noise, data, 3)
    train(last, 3)
    last.close()
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process that ends in the ordinary way


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
