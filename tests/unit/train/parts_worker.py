"""Run by test_in_parts.py in gloo processes, or one of NCCL; rank 0 writes one json object."""

from __future__ import annotations

import json
import os
import sys
import warnings
import weakref
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from tightrope.errors import TightropeError
from tightrope.train import (
    AdaptiveClip,
    DiscreteGaussianNoise,
    FullBatchSampler,
    GaussianNoise,
    PoissonSampler,
    noisy_sgd,
)
from tightrope.train.clip import FlatClip
from tightrope.train.units import Unit

WIDTH, ROWS = 8, 22
DEVICE = "cuda" if "nccl" in sys.argv else "cpu"


def make_data():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, 4, WIDTH, generator=generator)
    return x, (x[:, 0, 0] > 0).long()


class Gate(nn.Module):
    """Parameters of its own: one has to be run again, one meets the batch by broadcasting."""

    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)
        self.scale = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        return (x @ self.turn).sin() * (self.scale**2)


class Block(nn.Module):
    def __init__(self, again):
        super().__init__()
        self.norm, self.attention = (
            nn.LayerNorm(WIDTH),
            nn.MultiheadAttention(WIDTH, 2, batch_first=True),
        )
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.again = again

    def _run(self, x):
        z = self.norm(x)
        x = x + self.attention(z, z, z, need_weights=False)[0]
        return x + self.down(self.up(x).tanh())

    def forward(self, x):
        return checkpoint(self._run, x, use_reentrant=False) if self.again else self._run(x)


class Deep(nn.Module):
    """What a model may be made of; block 1 is checkpointed inside, block 2 from outside."""

    def __init__(self):
        super().__init__()
        self.places = nn.Parameter(torch.randn(1, 4, WIDTH))
        self.blocks = nn.ModuleList(Block(again=i == 1) for i in range(3))
        self.gate, self.memory = Gate(), nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight  # tied inside of one unit
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x):
        x = self.frozen(x + self.places)
        x = self.blocks[1](self.blocks[0](x))
        x = checkpoint(self.blocks[2], x, use_reentrant=False)
        x, _ = self.memory(self.gate(x))
        return self.head(self.second(self.first(x).tanh()).mean(1))


def make_run(sampler=None, noise=None, *, shard_it=True, clip=None, policy=None, **more):
    torch.manual_seed(0)
    model = Deep().to(DEVICE)
    if shard_it:
        how = {} if policy is None else {"mp_policy": policy}
        for part in (*model.blocks, model.gate, model.memory, model.frozen):
            fully_shard(part, **how)
        fully_shard([model.first, model.second], **how)
        fully_shard(model, **how)
    return noisy_sgd(
        model, learning_rate=0.5, sampler=sampler or FullBatchSampler(), clip=clip or FlatClip(0.5),
        noise=noise or GaussianNoise(0.0), expected_batch_size=10, **more,
    )  # fmt: skip


def losses_of(model, x, y):
    """Of nobody: none. Not every kernel of a GPU can be run on no rows."""
    if DEVICE == "cuda" and not len(x):
        return torch.zeros(0, device=DEVICE, requires_grad=True)
    return cross_entropy(model(x).float(), y, reduction="none")


def train(run, data, steps=2, micro_batch=None):
    sizes = []
    for x, y in run.batches(data, steps=steps, micro_batch=micro_batch):
        report = run.step(losses_of(run.model, x, y))
        sizes.append(report.sensitive.batch_size)
    return sizes


def whole(run):
    parts = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in run.model.parameters()]
    return torch.cat([p.detach().reshape(-1).float() for p in parts])


def every(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


class Meter:
    """The largest number of gathered values that were alive at one time."""

    def __init__(self):
        self.now = self.most = 0
        self._gathered = Unit.gathered

    def _counted(self, value):
        """The same in memory whose end is noticed."""
        memory = np.empty(tuple(value.shape), dtype=np.float32)
        self.now += memory.size
        weakref.finalize(memory, self._fell, memory.size)
        return torch.from_numpy(memory).copy_(value)

    def _fell(self, size):
        self.now -= size

    def __enter__(self):
        def gathered(unit):
            values = [self._counted(value) for value in self._gathered(unit)]
            self.most = max(self.most, self.now)
            return values

        Unit.gathered = gathered
        return self

    def __exit__(self, *_):
        Unit.gathered = self._gathered


def steps(shard):
    """One rank has most of the rows, and many micro-batches: as one process on all rows."""
    run = make_run()
    start = whole(run).tolist()
    last = dist.get_rank() == dist.get_world_size() - 1
    train(run, shard, micro_batch=4 if last else None)
    return {"start": start, "end": whole(run).tolist(), "rows": every(len(shard[0]))}


def memory(shard):
    """Twelve layers of one size, each a unit."""
    model = nn.Sequential(nn.Flatten(), *[nn.Linear(4 * WIDTH, 4 * WIDTH) for _ in range(12)])
    for layer in model[1:]:
        fully_shard(layer)
    fully_shard(model)
    with Meter() as meter:
        run = noisy_sgd(
            model, learning_rate=0.5, sampler=FullBatchSampler(), clip=FlatClip(0.5),
            noise=GaussianNoise(0.0), expected_batch_size=10,
        )  # fmt: skip
        train(run, shard, steps=1, micro_batch=4)
    held = sum(p.to_local().numel() for p in model.parameters())
    return {
        "unit": sum(p.numel() for p in model[1].parameters()),
        "most": every(meter.most),
        "left": every(meter.now),
        "held": every(held),
    }


def drawn(shard):
    """The same draws with and without shards, some batches empty; a clip that follows a count."""
    ends = {}
    for shard_it in (False, True):
        clip = AdaptiveClip(0.5)
        run = make_run(PoissonSampler(0.1, seed=4), clip=clip, shard_it=shard_it)
        sizes = train(run, shard, steps=4)
        ends[shard_it] = (whole(run), float(run.clip.sensitivity))
    return {
        "sizes": every(sizes),
        "apart": float((ends[False][0] - ends[True][0]).abs().max()),
        "clips": [ends[False][1], ends[True][1]],
    }


def noise(shard):
    """Steps of pure noise under one seed: every coordinate has its own."""
    run = make_run(PoissonSampler(0.0, seed=1), GaussianNoise(2.0, seed=1))
    before = whole(run)
    train(run, shard, steps=1)
    moved = (whole(run) - before) * 10 / 2.0 / 0.5 / 0.5 / (1.0 + run.arithmetic.rho)
    return moved[moved != 0].tolist()


def one_seed(shard):
    """The noise of ranks that hold parts of one size, under one seed."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4 * WIDTH, 4 * WIDTH))
    fully_shard(model)
    run = noisy_sgd(
        model, learning_rate=0.5, sampler=PoissonSampler(0.0, seed=1), clip=FlatClip(0.5),
        noise=GaussianNoise(1.0, seed=1), expected_batch_size=10,
    )  # fmt: skip
    before = [p.to_local().clone() for p in model.parameters()]
    train(run, shard, steps=1)
    moved = [p.to_local() - old for p, old in zip(model.parameters(), before, strict=True)]
    return every(torch.cat([part.flatten() for part in moved]).tolist())


def given_up(shard):
    """A rank fails when half of its sums are given; everybody gives the step up and goes on.

    Sums that are formed beside the step are part of none.
    """
    run = make_run()
    x, y = next(run.batches(shard, steps=1))
    try:
        losses = cross_entropy(run.model(x), y, reduction="none")
        run.gradients.clipped_sum(losses, run.clip)
    except TightropeError as error:
        beside = str(error)
    run.abandon_batch()
    own, calls, told = run._shares._hand_over, [], []

    def failing(number):
        calls.append(number)
        if len(calls) == 4:
            raise MemoryError("no room for this sum")
        own(number)

    if dist.get_rank() == 0:
        run._shares._hand_over = failing
    for again in (False, True):
        try:
            if again:  # not without having been told
                x, y = (t[: run.next_size] for t in shard)
                run.step(cross_entropy(run.model(x), y, reduction="none"))
            else:
                train(run, shard)
        except (MemoryError, TightropeError) as error:
            told.append(str(error))
    run.abandon_batch()
    train(run, shard)
    return {
        "beside": beside,
        "told": every(told),
        "end": whole(run).tolist(),
        "released": run.ledger.released,
    }


def same(shard):
    """Five steps with and without shards; of every drawn batch the outputs are also just looked at.

    told: warnings that weights are gathered whole after all. gathers: of single units.
    """
    found, own, gathers = {}, Unit.gathered, []

    def gathered(unit):
        gathers.append(unit.number)
        return own(unit)

    Unit.gathered = gathered
    try:
        for shard_it in (False, True):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                run = make_run(shard_it=shard_it)
            start, looks, moved, gathers[:] = whole(run), [], [], []
            for x, y in run.batches(shard, steps=5, micro_batch=8):
                moved.append(run.model.memory._weights_have_changed())
                with torch.no_grad():
                    seen = float(run.model(x).float().square().sum())
                looks += [seen] if run.company.size is None else []  # rehearsed batches are changed
                run.step(losses_of(run.model, x, y))
            found["in parts" if shard_it else "whole"] = {
                "start": start.tolist(), "end": whole(run).tolist(), "looks": looks,
                "in parts": run.sharding.in_parts, "gathers": len(gathers),
                "told": [str(w.message) for w in caught if "gathered whole" in str(w.message)],
                "flattened": any(moved),
                "devices": sorted({p.device.type for p in run.model.parameters()}),
            }  # fmt: skip
    finally:
        Unit.gathered = own
    return found | {"backend": dist.get_backend()}


def strict(shard):
    """Needs whole weights, and says so."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = make_run(noise=DiscreteGaussianNoise(1.0), arithmetic="strict")
    told = [str(w.message) for w in caught if "gathered whole" in str(w.message)]
    return {"told": told, "in parts": run.sharding.in_parts}


def half(shard):
    """Gathered in bfloat16, as FSDP was told; on a GPU no bound covers such a step."""
    more = {"arithmetic": "uncovered"} if DEVICE == "cuda" else {}
    run = make_run(policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16), **more)
    train(run, shard)
    dtypes = sorted({str(p.dtype) for p in run.gradients.parameters})
    return {"dtypes": dtypes, "in parts": run.sharding.in_parts, "end": whole(run).tolist()}


def closed(shard):
    """After close() the model is FSDP's; a second run on it stays in parts too."""
    first = make_run()
    train(first, shard, steps=1)
    first.close()
    model = first.model
    # cuDNN would move the weights of the LSTM, which FSDP's own gathering does not follow.
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=False):
        plain = model(shard[0][:2].to(DEVICE))
    model.reshard()  # FSDP leaves the outermost unit whole
    second = noisy_sgd(
        model, learning_rate=0.5, sampler=FullBatchSampler(), clip=FlatClip(0.5),
        noise=GaussianNoise(0.0), expected_batch_size=10,
    )  # fmt: skip
    train(second, shard, steps=1)
    return {"finite": bool(plain.isfinite().all()), "in parts": second.sharding.in_parts,
            "end": whole(second).tolist()}  # fmt: skip


def leaves(shard):
    """The second rank ends in the middle of a step; the others are told."""
    run = make_run()
    for x, y in run.batches(shard, steps=1):
        if dist.get_rank() == 1 and run.company.size is None:
            os._exit(0)
        run.step(cross_entropy(run.model(x), y, reduction="none"))


def main() -> None:
    torch.set_num_threads(1)
    tasks, folder = sys.argv[1].split(","), Path(sys.argv[2])
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo", timeout=timedelta(seconds=60))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    first = max(1, ROWS // (10 * ranks))  # the last rank has most of the rows
    mine = slice(rank * first, ROWS if rank == ranks - 1 else (rank + 1) * first)
    shard = tuple(part[mine] for part in make_data())
    report = {task: globals()[task](shard) for task in tasks}
    try:
        leaves(shard)
    except TightropeError as error:
        report["leaves"] = str(error)
    if rank == 0:
        (folder / "report").write_text(json.dumps(report))
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process that ends in the ordinary way


if __name__ == "__main__":
    main()
