"""Run by test_strict_arithmetic.py under torchrun with two gloo processes; rank 0 writes json."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.train import (
    DiscreteGaussianNoise,
    FlatClip,
    FullBatchSampler,
    PoissonSampler,
    noisy_sgd,
)


def make_data():
    x = torch.randn(31, 5, generator=torch.Generator().manual_seed(3))
    return x, (x[:, 0] > 0).long()


def loss(model, x, y):
    return cross_entropy(model(x), y, reduction="none")


def first_release(data, *, noise=0.0, sampler=None, steps=1):
    """What the first steps release, as the optimizer gets it: all bits, in hexadecimal."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 2))
    run = noisy_sgd(
        model,
        data,
        loss,
        learning_rate=0.0,
        sampler=sampler or FullBatchSampler(),
        clip=FlatClip(0.7),
        noise=DiscreteGaussianNoise(noise),
        expected_batch_size=10,
        arithmetic="strict",
        steps=steps,
    )
    seen = []
    run.write_ahead = lambda step, sums: seen.extend(
        value.hex() for total in sums for value in total.reshape(-1).tolist()
    )
    assert len(list(run)) == steps
    run.close()
    return seen


def main(report):
    dist.init_process_group("gloo")
    x, y = make_data()
    cut = (slice(0, 9), slice(9, 31))[dist.get_rank()]
    share = (x[cut], y[cut])
    empty = first_release(share, noise=2.0, sampler=PoissonSampler(0.0), steps=20)
    found = {
        "plain": first_release(share),
        "noise": [float.fromhex(value) / (2.0 * 0.7) for value in empty],
    }
    if dist.get_rank() == 0:
        Path(report).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__" and "RANK" in os.environ:
    main(sys.argv[1])
