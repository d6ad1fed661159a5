"""Run by test_ranks.py under torchrun with two gloo processes; rank 0 prints one json object."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.errors import InvalidInput
from tightrope.train import (
    FixedSizeSampler,
    FullBatchSampler,
    GaussianNoise,
    GridGaussianNoise,
    PoissonSampler,
    RunFolder,
    noisy_sgd,
)
from tightrope.train.clip import FlatClip


def make_data():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(60, 5, generator=generator)
    return x, (x[:, 0] > 0).long()


def make_run(sampler, noise, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 2))
    return noisy_sgd(
        model,
        learning_rate=1.0,
        sampler=sampler,
        clip=FlatClip(1.0),
        noise=noise,
        expected_batch_size=10,
    )


def train(run, data, steps, micro_batch=None):
    sizes = []
    for x, y in run.batches(data, steps=steps, micro_batch=micro_batch):
        report = run.step(cross_entropy(run.model(x), y, reduction="none"))
        sizes.append(report.sensitive.batch_size)
    return sizes


def flat(run):
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])


def gathered(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def exact(shard):
    """Full batches without noise: must equal the one-process result. Unequal micro-batches."""
    run = make_run(FullBatchSampler(), GaussianNoise(0.0), seed=dist.get_rank())
    train(run, shard, steps=3, micro_batch=7 if dist.get_rank() else 30)
    return flat(run).tolist()


def sampling(shard):
    """The same seed on both ranks; batches of the ranks must be independent all the same."""
    run = make_run(PoissonSampler(0.2, seed=5), GaussianNoise(1.0, seed=5))
    sizes = train(run, shard, steps=150)
    return {
        "sizes": gathered(sizes),
        "process": repr(run.process),
        "weights": gathered(flat(run).tolist()),
    }


def noise(shard):
    """Empty batches: the weights take a step of pure noise, once, not once for each rank."""
    run = make_run(PoissonSampler(0.0), GaussianNoise(2.0))
    before = flat(run)
    train(run, shard, steps=30)
    return ((flat(run) - before) * 10 / 2.0 / 30**0.5).tolist()


def resume(shard, folder):
    run = make_run(PoissonSampler(0.2), GaussianNoise(1.0))
    store = RunFolder(folder)
    store.attach(run, shard)
    train(run, shard, steps=2)
    store.save()
    train(run, shard, steps=2)
    store.close()
    again = make_run(PoissonSampler(0.2), GaussianNoise(1.0))
    RunFolder(folder).attach(again, shard)
    counted = again.ledger.released
    train(again, shard, steps=2)
    return {"same": bool(torch.equal(flat(run), flat(again))), "counted": counted}


def refusals():
    told = []
    for make in (
        lambda: make_run(FixedSizeSampler(5, 30), GaussianNoise(1.0)),
        lambda: make_run(PoissonSampler(0.1), GridGaussianNoise(1.0)),
        lambda: make_run(PoissonSampler(0.1), GaussianNoise(1.0 + dist.get_rank())),
    ):
        try:
            make()
        except InvalidInput as error:
            told.append(str(error)[:60])
    return told


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    shard = tuple(part[rank::2] for part in make_data())
    report = {
        "exact": exact(shard),
        "sampling": sampling(shard),
        "noise": noise(shard),
        "resume": resume(shard, Path(sys.argv[1])),
        "refusals": refusals(),
    }
    if rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
