"""Run by test_ranks.py under torchrun with gloo processes; rank 0 writes one json object."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.correlated import square_root
from tightrope.errors import InvalidInput
from tightrope.train import (
    CorrelatedNoise,
    CyclicPoissonSampler,
    DiscreteGaussianNoise,
    FixedSizeSampler,
    FlatClip,
    FullBatchSampler,
    GaussianNoise,
    PoissonSampler,
    noisy_sgd,
)


def make_data():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(60, 5, generator=generator)
    return x, (x[:, 0] > 0).long()


def loss(model, x, y):
    return cross_entropy(model(x), y, reduction="none")


def make_run(data, sampler, noise, seed=0, **how):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 2))
    settings = {"steps": 1_000, "expected_batch_size": 10} | how
    return noisy_sgd(
        model, data, loss, learning_rate=1.0, sampler=sampler, clip=FlatClip(1.0), noise=noise,
        **settings,
    )  # fmt: skip


def take(run, steps):
    sizes = []
    for _ in range(steps):
        run.take_step()
        if run.shows_private:
            sizes.append(run.sensitive.batch_size)
    return sizes


def flat(run):
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])


def gathered(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def exact(share):
    """Full batches without noise: must equal the one-process result. Unequal micro-batches."""
    rank = dist.get_rank()
    run = make_run(
        share, FullBatchSampler(), GaussianNoise(0.0), seed=rank, micro_batch=7 if rank else 30
    )
    take(run, 3)
    return flat(run).tolist()


def sampling(share):
    """The same seed on all ranks; batches of the ranks must be independent all the same."""
    run = make_run(
        share, PoissonSampler(0.2, seed=5), GaussianNoise(1.0, seed=5), steps=150, sensitive=True
    )
    sizes = take(run, 150)
    return {
        "sizes": gathered(sizes),
        "process": repr(run.process),
        "weights": gathered(flat(run).tolist()),
    }


def noise(share):
    """Empty batches: the weights take a step of pure noise, once, not once for each rank."""
    run = make_run(share, PoissonSampler(0.0), GaussianNoise(2.0))
    before = flat(run)
    take(run, 30)
    return ((flat(run) - before) * 10 / 2.0 / 30**0.5).tolist()


def resume(share, folder):
    def made():
        sampler, noise = PoissonSampler(0.2, seed=1), GaussianNoise(1.0, seed=1)
        return make_run(share, sampler, noise, folder=folder)

    run = made()
    take(run, 2)
    run.folder.save()
    take(run, 2)
    run.close()
    again = made()
    counted = again.ledger.released
    take(again, 2)
    return {"same": bool(torch.equal(flat(run), flat(again))), "counted": counted}


def correlated(share, folder):
    """Pure noise of 4 steps, of 2 that a crash loses, and of 4 after it, on the sum."""

    def made():
        sampler, noise = CyclicPoissonSampler(0.0, 3), CorrelatedNoise(square_root(3), 2.0)
        return make_run(share, sampler, noise, steps=10, folder=folder)

    def released(run, steps):
        rows = []
        for _ in range(steps):
            before = flat(run)
            take(run, 1)
            rows.append(((before - flat(run)) * 10 / 2.0).tolist())
        return rows

    run = made()
    rows = released(run, 4)
    run.folder.save()
    rows += released(run, 2)
    run.close()
    return rows + released(made(), 4)


def refusals(share):
    said = []
    for sampler, noise in (
        (lambda: FixedSizeSampler(5, 30), lambda: GaussianNoise(1.0)),
        (lambda: PoissonSampler(0.1), lambda: DiscreteGaussianNoise(1.0)),
        (lambda: PoissonSampler(0.1), lambda: GaussianNoise(1.0 + dist.get_rank())),
    ):
        try:
            make_run(share, sampler(), noise())
        except InvalidInput as error:
            said.append(str(error)[:60])
    return said


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    share = tuple(part[rank::ranks] for part in make_data())
    report = {
        "exact": exact(share),
        "sampling": sampling(share),
        "noise": noise(share),
        "resume": resume(share, Path(sys.argv[1])),
        "refusals": refusals(share),
        "correlated": correlated(share, Path(f"{sys.argv[1]}-correlated")),
    }
    if rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(report))
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process that ends in the ordinary way


if __name__ == "__main__":
    main()
