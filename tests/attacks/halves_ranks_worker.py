"""Run by test_rehearsed_halves.py under torchrun with two gloo processes; each prints one line
for each kind of loop.
"""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.errors import ModelNotPrivate
from tightrope.train import FlatClip, GaussianNoise, PoissonSampler, noisy_sgd


def collate(items):
    return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


def main(kind):
    rank = dist.get_rank()
    x = torch.randn(30, 5, generator=torch.Generator().manual_seed(rank))
    y = (x[:, 0] > 0).long()
    items, how = (x, y), {}
    if kind == "collate":
        items, how = list(zip(x, y, strict=True)), {"collate": collate}
    run = noisy_sgd(
        nn.Linear(5, 2),
        learning_rate=0.1,
        sampler=PoissonSampler(0.05),
        clip=FlatClip(1.0),
        noise=GaussianNoise(1.0),
        expected_batch_size=3,
    )
    run.company._steps.random = lambda: 0.0  # every batch is rehearsed
    try:
        for x, y in run.batches(items, steps=20, **how):
            dist.all_reduce(torch.ones(1))
            divided = max(len(x), 1) if kind == "divided" and rank == 0 else 1
            run.step(cross_entropy(run.model(x), y, reduction="none") / divided)
    except ModelNotPrivate:
        return f"rank {rank} {kind} refused\n"
    return f"rank {rank} {kind} trained\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for kind in sys.argv[1:]:
        sys.stdout.write(main(kind))
        sys.stdout.flush()
    dist.destroy_process_group()
