"""Two ranks that do not do the same, or have the same data; run by test_ranks_agree.py."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.errors import TightropeError
from tightrope.train import (
    FlatClip,
    FullBatchSampler,
    GaussianNoise,
    PoissonSampler,
    UserData,
    Users,
    noisy_sgd,
)

RANK, PLACES = int(os.environ["RANK"]), 8


class Placed(nn.Module):
    """Words and their places; places that are padding are not read."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(9, 4), nn.Embedding(PLACES, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, ids, scale):
        found = self.words(ids) + self.places(torch.arange(PLACES))
        return self.out((found * scale)[:, :-1].tanh().mean(1))


def losses_of(model, *batch):
    return cross_entropy(model(*batch[:-1]), batch[-1], reduction="none")


def made(data, model=None, **parts):
    torch.manual_seed(0)
    how = {"sampler": FullBatchSampler(), "clip": FlatClip(0.5), "noise": GaussianNoise(0.0)}
    model = nn.Linear(3, 2) if model is None else model
    return noisy_sgd(
        model, data, losses_of, learning_rate=0.5, expected_batch_size=10, steps=10, **(how | parts)
    )


def numbers(rows=10):
    torch.manual_seed(RANK + 1)
    return torch.randn(rows, 3), torch.randint(0, 2, (rows,))


def every(value):
    values = [None, None]
    dist.all_gather_object(values, value)
    return values


def refusal(action):
    try:
        action()
    except TightropeError as error:
        return str(error)
    return ""


def another_clip_on_one_rank():
    run = made(numbers())
    run.take_step()
    if RANK == 1:
        run.clip = FlatClip(50.0)
    return every([refusal(run.take_step), run.steps])


def a_reason_of_one_rank():
    """The certificate is rank 0's."""
    run = made(numbers())
    run.take_step()
    if RANK == 1:
        run.ledger.forfeit(["by chance"])
    run.take_step()
    return every(list(run.ledger.forfeited))


def one_rank_names_its_data():
    return every(refusal(lambda: made(numbers(), fingerprint="mine" if RANK else None)))


def models_of_two_types():
    dtype = [torch.float32, torch.float64][RANK]
    x, y = numbers()
    return every(refusal(lambda: made((x.to(dtype), y), nn.Linear(3, 2).to(dtype))))


def a_record_without_numbers(*, with_it):
    """As many examples as places: what one record hides must not make others count as it does."""
    torch.manual_seed(RANK)
    ids, y = torch.randint(0, 9, (PLACES, PLACES)), torch.arange(PLACES) % 2
    scale = torch.ones(PLACES, PLACES, 4)
    if RANK == 0:
        scale[-1, :-1, 0] = torch.nan
    mine = (ids, scale, y)
    if not (with_it or RANK):
        mine = tuple(part[:-1] for part in mine)
    run = made(mine, Placed(), fingerprint=f"those of {RANK}")
    before = torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])
    run.take_step()
    after = torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])
    return (after - before).tolist()


class Items:
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


def squares(model, x):
    return model(x).square().sum(dim=1)


def refused(data, seed=None, users=None, **how):
    """In which words; nothing where they may be drawn."""
    torch.manual_seed(0)

    def step():
        sampler = PoissonSampler(0.5, seed=seed, users=users)
        noisy_sgd(
            nn.Linear(3, 1), data, squares, learning_rate=0.1, sampler=sampler,
            clip=FlatClip(1.0), noise=GaussianNoise(1.0), expected_batch_size=10, steps=10, **how,
        ).take_step()  # fmt: skip

    return refusal(step)


def data_of_two_ranks():
    """Which shares are refused, and in which words."""
    x = torch.randn(100, 3, generator=torch.Generator().manual_seed(5))
    coins = (torch.randn(400, 3, generator=torch.Generator().manual_seed(6)) > 0).float()
    mixed = x[torch.randperm(100, generator=torch.Generator().manual_seed(RANK))]
    bad = {
        "the whole data each": x,
        "the whole data in another order": mixed,
        "the whole data as items": Items(x),
        "the whole of common records": coins,
        "one inside the other": x if RANK else x[:30],
        "overlapping slices": x[:60] if RANK else x[50:],
        "one record": x[:51] if RANK else x[50:],
        "records that many people share": coins[RANK::2],
    }
    good = {
        "every second row": refused(x[RANK::2]),
        "halves, as items": refused(Items(x[50 * RANK :][:50])),
        "an empty share": refused(x if RANK else x[:0]),
        "named": refused(coins[RANK::2], fingerprint=f"coins, part {RANK}"),
    }
    # The certificate is rank 0's, which would know nothing of the seed.
    half_seeded = refused(x[RANK::2], seed=RANK or None)
    bad = {name: refused(data) for name, data in bad.items()}
    return {"bad": bad, "good": good, "half seeded": half_seeded}


def users_of_two_ranks():
    """Both ways of drawing: names are compared over the ranks, and all ranks refuse together."""
    x, numbers, texts = torch.randn(8, 3)[4 * RANK :][:4], [1, 1, 2, 2], ["1", "1", "3", "3"]
    names = {
        "shared": texts if RANK else numbers,
        "apart": [RANK, RANK, RANK + 2, RANK + 2],
        "long": [RANK] * 4 if RANK else ["a", "a", "b", "b"],
    }
    return {
        name: [refused(UserData(x, own), users=Users(2, together)) for together in (True, False)]
        for name, own in names.items()
    }


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    report = {
        "another clip": another_clip_on_one_rank(),
        "reason": a_reason_of_one_rank(),
        "named": one_rank_names_its_data(),
        "types": models_of_two_types(),
        "data": every(data_of_two_ranks()),
        "users": every(users_of_two_ranks()),
        "hidden": [a_record_without_numbers(with_it=with_it) for with_it in (True, False)],
    }
    if RANK == 0:
        Path(sys.argv[1]).write_text(json.dumps(report))
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process that ends in the ordinary way


if __name__ == "__main__":
    main()
