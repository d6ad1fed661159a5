"""Run by test_parts.py in two gloo processes; rank 0 writes one json object."""

from __future__ import annotations

import json
import os
import sys
import warnings
from datetime import timedelta
from functools import partial
from pathlib import Path

import parts_models
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.functional import cross_entropy

from tightrope.errors import TightropeError
from tightrope.train import BallsInBinsSampler, FullBatchSampler, GaussianNoise, noisy_sgd
from tightrope.train.clip import FlatClip

PLACES, PATIENCE = 2, 60


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(self.first(x).tanh())


def make_run(sampler=None):
    torch.manual_seed(0)
    model = Small()
    fully_shard(model.last)
    fully_shard(model.first)
    fully_shard(model)
    return noisy_sgd(
        model, learning_rate=0.5, sampler=sampler or FullBatchSampler(), clip=FlatClip(0.5),
        noise=GaussianNoise(0.0), expected_batch_size=10,
    )  # fmt: skip


def losses_of(run, batch):
    x, y = batch
    return cross_entropy(run.model(x), y, reduction="none")


def every(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def told(action):
    try:
        action()
    except (MemoryError, TightropeError) as error:
        return str(error)
    return None


def fails_while_others_wait(shard):
    """Rank 0 fails in a later micro-batch; rank 1 is done with its own and waits."""
    run = make_run(BallsInBinsSampler(PLACES, seed=3))
    own, first = run._shares._hand_over, dist.get_rank() == 0

    def failing(number):
        if own_calls.append(number) or len(own_calls) == 4:
            raise MemoryError("no room")
        own(number)

    own_calls = []
    if first:
        run._shares._hand_over = failing

    def train(steps):
        for batch in run.batches(shard, steps=steps, micro_batch=1 if first else None):
            run.step(losses_of(run, batch))

    run.company.asleep = True
    heard = told(lambda: train(1))
    run._shares._hand_over = own
    run.abandon_batch()
    where = run.steps, run.sampler.position
    train(PLACES)
    return every([heard, *where, run.steps])


def gives_up_after_serving(shard):
    """Rank 0 has given nothing, but holds rows of what rank 1 gave, when it leaves its batch."""
    run = make_run()
    batch = next(run.batches(shard, steps=1))
    if dist.get_rank() == 0:
        run.model(batch[0])
        run.model(batch[0])  # meanwhile the other's sums come
        held = bool(run._shares._sums)
        run.abandon_batch()
        return every([held, None])
    heard = told(lambda: run.step(losses_of(run, batch)))
    run.abandon_batch()
    return every([None, heard])


def shown_in_the_middle(shard):
    """A user stores the model when a batch is drawn."""
    run = make_run()
    before = {n: v.full_tensor() for n, v in run.model.state_dict().items()}
    batch = next(run.batches(shard, steps=1))
    losses = losses_of(run, batch)
    shown = {n: v.full_tensor() for n, v in run.model.state_dict().items()}
    with CommDebugMode() as messages:
        run.step(losses)
    gathered = [str(kind) for kind in messages.get_comm_counts() if "into_tensor" in str(kind)]
    return {"same": all(torch.equal(shown[n], v) for n, v in before.items()), "gathered": gathered}


def waits(shard):
    """For a rank that does not come, as long as the process group was told to."""
    talk = make_run().sharding.rounds._talk
    return talk._get_backend(torch.device("cpu")).options._timeout.total_seconds()


def odd_places(shard):
    """Models that read their weights where nobody expects it."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = tuple(part[rank::ranks] for part in parts_models.make_data())
    return {name: parts_models.trained(name, mine).tolist() for name in parts_models.CASES}


def too_early(shard):
    """A forward pass, or only the losses, before the batch is drawn; and once more after it."""
    run = make_run()
    run.company.asleep = True
    heard = []
    for again in (False, True):
        out = run.model(shard[0])
        batch = next(run.batches(shard, steps=2))
        if again:
            run.model(batch[0])
        losses = cross_entropy(out, batch[1], reduction="none")
        heard.append(told(partial(run.step, losses)))
        run.abandon_batch()
    return [*heard, run.steps]


def changed(shard):
    """A constraint that is put on a weight when a batch is drawn."""
    run = make_run()
    next(run.batches(shard, steps=1))
    with torch.no_grad():
        heard = told(lambda: run.model.first.bias.clamp_(0, 1))
    run.abandon_batch()
    return heard


def leaves_early(shard):
    """Rank 1 fails in its own code before it has given anything, and goes on."""
    run = make_run()
    run.company.asleep = True

    def fail(*_):
        raise MemoryError("no room")

    hook = run.model.last.register_forward_pre_hook(fail) if dist.get_rank() == 1 else None
    batch = next(run.batches(shard, steps=1))
    heard = told(lambda: run.step(losses_of(run, batch)))
    run.abandon_batch()
    if hook is not None:
        hook.remove()
    for batch in run.batches(shard, steps=1):
        run.step(losses_of(run, batch))
    return every([heard, run.steps])


def nobody_counts(shard):
    """Gradients by values that are not there."""
    run = parts_models.run_of(parts_models.Keeps())
    run.company.asleep = True
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = tuple(part[rank::ranks] for part in parts_models.make_data())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for batch in run.batches(mine, steps=1):
            run.step(losses_of(run, batch))
    return str(told[0].message) if told else "trained"


def no_rows(shard):
    """Rank 0 has no records at all."""
    run = make_run()
    few = tuple(part[: 0 if dist.get_rank() == 0 else 4] for part in shard)
    for batch in run.batches(few, steps=2):
        report = run.step(losses_of(run, batch))
    return every([report.sensitive.batch_size, run.steps])


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE))
    rank, generator = dist.get_rank(), torch.Generator().manual_seed(3)
    x = torch.randn(24, 4, generator=generator)
    shard = x[rank::2], (x[rank::2, 0] > 0).long()
    tasks = (
        fails_while_others_wait, gives_up_after_serving, shown_in_the_middle, waits, odd_places,
        too_early, changed, leaves_early, nobody_counts, no_rows,
    )  # fmt: skip
    report = {task.__name__: task(shard) for task in tasks}
    if rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(report))
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process that ends in the ordinary way


if __name__ == "__main__":
    main()
