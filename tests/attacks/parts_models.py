"""Models in parts that read their weights in odd places, trained by parts_attack_worker.py.

Each case is a model, a loop over its batches, and what its run is made with.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from tightrope.train import AdaptiveClip, FullBatchSampler, GaussianNoise, PerLayerClip, noisy_sgd
from tightrope.train.clip import FlatClip

WIDTH, ROWS = 6, 22


def make_data():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, WIDTH, generator=generator)
    return x, (x[:, 0] > 0).long()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.turn = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def run(self, x):
        return x + self.turn(self.norm(x)).tanh() * self.scale

    def forward(self, x):
        return self.run(x)


class Again(Block):
    """Its own parameter is read by a method that runs once more in the backward pass."""

    def forward(self, x):
        return checkpoint(self.run, x, use_reentrant=False)


class Adapted(Block):
    """Low-rank factors of its own beside a frozen layer: differentiated by torch.func."""

    def __init__(self):
        super().__init__()
        self.turn.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, WIDTH)), nn.Parameter(torch.randn(6, 2))

    def forward(self, x):
        return self.run(x) + (x @ self.down.t()) @ self.up.t()


class Net(nn.Module):
    def __init__(self, block=Block):
        super().__init__()
        self.start, self.gain = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.rand(2) + 0.5)
        self.blocks, self.head = nn.ModuleList(block() for _ in range(2)), nn.Linear(WIDTH, 2)

    def forward(self, x):
        x = x + self.start
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.gain

    def losses(self, x, y):
        return cross_entropy(self.forward(x), y, reduction="none")


class Reads(Net):
    """Reads weights of the modules below."""

    def forward(self, x):
        below = self.blocks[0]
        return super().forward(x) * below.scale.mean() * below.turn.weight.square().mean()


class Keeps(Net):
    """Hooks inside of the unit keep its own parameter instead of the values."""

    def forward(self, x):
        with saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
            return super().forward(x)


def run_of(model, *, shard_it=True, **parts):
    if shard_it:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    parts = {"clip": FlatClip(0.5), "sampler": FullBatchSampler(), **parts}
    noise = GaussianNoise(0.0)
    return noisy_sgd(model, learning_rate=0.5, noise=noise, expected_batch_size=10, **parts)


def called(run, x, y):
    return cross_entropy(run.model(x), y, reduction="none")


def beside(run, x, y):
    return run.model.losses(x, y)


def registered(run, x, y):
    if not hasattr(run, "told"):
        run.told = register_fsdp_forward_method(run.model, "losses")
    return run.model.losses(x, y)


def by_one_rank(run, x, y):
    """Only the first rank looks at a weight."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        assert float(run.model.gain.detach().norm()) > 0
    return called(run, x, y)


def watched(run, x, y):
    with saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
        return called(run, x, y)


def in_half(run, x, y):
    with torch.autocast("cpu", torch.bfloat16):
        return cross_entropy(run.model(x).float(), y, reduction="none")


def of_views(run, x, y):
    rows = torch.stack([x, -x], 1).flatten(0, 1)
    each = cross_entropy(run.model(rows), y.repeat_interleave(2), reduction="none")
    return each.view(-1, 2)


CASES = {
    "beside": (Net, beside, {}),
    "registered": (Net, registered, {}),
    "by_one_rank": (Net, by_one_rank, {}),
    "again": (partial(Net, Again), called, {}),
    "adapted": (partial(Net, Adapted), called, {}),
    "reads": (Reads, called, {}),
    "watched": (Net, watched, {}),
    "half": (partial(Net, Again), in_half, {}),
    "views": (Net, of_views, {"views": 2}),
    "adaptive": (Net, called, {"clip": partial(AdaptiveClip, 0.5)}),
    "per_layer": (Net, called, {"clip": partial(PerLayerClip, 0.5)}),
}


def trained(name, data, *, shard_it=True):
    """How far two steps move the weights; the ranks split their batches in their own ways."""
    make, losses, parts = CASES[name]
    torch.manual_seed(0)
    parts = {key: part() if callable(part) else part for key, part in parts.items()}
    run = run_of(make(), shard_it=shard_it, **parts)
    run.company.asleep = name != "beside"  # rehearsals take a second each
    start = whole(run.model)
    last = dist.is_initialized() and dist.get_rank() == dist.get_world_size() - 1
    for x, y in run.batches(data, steps=2, micro_batch=4 if last else None):
        run.step(losses(run, x, y))
    assert run.steps == 2 and run.sharding.in_parts == shard_it
    return whole(run.model) - start


def whole(model):
    parts = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([p.detach().reshape(-1) for p in parts])
