"""Two ranks that do not do the same; run by test_ranks_agree.py under torchrun."""

from __future__ import annotations

import json
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from tightrope.errors import TightropeError
from tightrope.train import (
    DiscreteGaussianNoise,
    FlatClip,
    FullBatchSampler,
    GaussianNoise,
    RunFolder,
    Trainer,
    noisy_sgd,
)

RANK, PLACES = int(os.environ["RANK"]), 8


class Placed(nn.Module):
    """Words and their places; of places that are padding nobody reads."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(9, 4), nn.Embedding(PLACES, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, ids, scale):
        found = self.words(ids) + self.places(torch.arange(PLACES))
        return self.out((found * scale)[:, :-1].tanh().mean(1))


def losses_of(model, batch):
    return cross_entropy(model(*batch[:-1]), batch[-1], reduction="none")


def made(model=None, **parts):
    torch.manual_seed(0)
    how = {"sampler": FullBatchSampler(), "clip": FlatClip(0.5), "noise": GaussianNoise(0.0)}
    model = nn.Linear(3, 2) if model is None else model
    return noisy_sgd(model, learning_rate=0.5, expected_batch_size=10, **(how | parts))


def numbers(rows=10, width=3):
    torch.manual_seed(RANK + 1)
    return torch.randn(rows, width), torch.randint(0, 2, (rows,))


def every(value):
    told = [None, None]
    dist.all_gather_object(told, value)
    return told


def refusal(action):
    try:
        action()
    except TightropeError as error:
        return str(error)
    return ""


def another_clip_on_one_rank():
    run = made()

    def train():
        for number, batch in enumerate(run.batches(numbers(), steps=3)):
            if number == 1 and RANK == 1:
                run.clip = FlatClip(50.0)
            run.step(losses_of(run.model, batch))

    run.company.asleep = True
    return every([refusal(train), run.steps])


def mixing_is_found_on_one_rank():
    """By the model's own look, after three steps; the certificate is rank 0's."""
    run = made()
    run.company.asleep = True
    for number, batch in enumerate(run.batches(numbers(), steps=4)):
        if number == 3 and RANK == 1:
            run._found_mixing("by chance")
        run.step(losses_of(run.model, batch))
    return every(list(run.ledger.forfeited))


def one_rank_names_its_data():
    run = made()
    return every(refusal(lambda: run.watch(numbers(), fingerprint="mine" if RANK else None)))


def models_of_two_types():
    return every(refusal(lambda: made(nn.Linear(3, 2).to([torch.float32, torch.float64][RANK]))))


def a_record_without_numbers(*, with_it):
    """As many examples as places: what one record hides must not make others count as it does."""
    torch.manual_seed(RANK)
    run = made(Placed())
    run.company.asleep = True
    ids, y = torch.randint(0, 9, (PLACES, PLACES)), torch.arange(PLACES) % 2
    scale = torch.ones(PLACES, PLACES, 4)
    if RANK == 0:
        scale[-1, :-1, 0] = torch.nan
    mine = (ids, scale, y)
    if not (with_it or RANK):
        mine = tuple(part[:-1] for part in mine)
    before = torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])
    run.watch(mine, fingerprint=f"those of {RANK}")
    for batch in run.batches(mine, steps=1):
        run.step(losses_of(run.model, batch))
    after = torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])
    return (after - before).tolist()


def a_trainer_of_shards(rows, folder):
    """Gathered whole (in strict mode), or in parts with few rows on one rank."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    fully_shard(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = {"arithmetic": "strict", "noise": DiscreteGaussianNoise(1.0)}
        run = made(model, **(whole if rows is None else {}))
        data = numbers(10 if rows is None else rows[RANK])
        loss = lambda out, y: cross_entropy(out, y, reduction="none")  # noqa: E731
        Trainer(run, loss, delta=1e-5, folder=RunFolder(folder), progress=False).fit(data, steps=2)
    return every(run.steps)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    out = Path(sys.argv[1])
    report = {
        "another clip": another_clip_on_one_rank(),
        "mixing": mixing_is_found_on_one_rank(),
        "named": one_rank_names_its_data(),
        "types": models_of_two_types(),
        "hidden": [a_record_without_numbers(with_it=with_it) for with_it in (True, False)],
        "gathered": a_trainer_of_shards(None, out.with_name("gathered")),
        "few rows": a_trainer_of_shards((1, 12), out.with_name("few")),
    }
    if RANK == 0:
        out.write_text(json.dumps(report))
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process that ends in the ordinary way


if __name__ == "__main__":
    main()
