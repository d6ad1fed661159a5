"""Two ranks that are given data in many ways; run by test_samplers_data.py under torchrun."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tightrope.errors import InvalidInput
from tightrope.train import (
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    UserData,
    Users,
    noisy_sgd,
)


class Items:
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Tensor:
        return self.x[i]


def squares(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum(dim=1)


def make_run(data: Any, seed: int | None = None, users: Users | None = None, **how: Any) -> Any:
    torch.manual_seed(0)
    return noisy_sgd(
        nn.Linear(3, 1),
        data,
        squares,
        learning_rate=0.1,
        sampler=PoissonSampler(0.5, seed=seed, users=users),
        clip=FlatClip(1.0),
        noise=GaussianNoise(1.0),
        expected_batch_size=10,
        steps=10,
        **how,
    )


def refused(data: Any, **how: Any) -> bool:
    try:
        make_run(data, **how).take_step()
    except InvalidInput as error:
        assert "hold equal records" in str(error), error
        return True
    return False


def half_seeded_is_refused(rank: int, data: Tensor) -> bool:
    """The certificate is rank 0's, which would know nothing of the seed."""
    try:
        make_run(data, seed=rank or None)
    except InvalidInput as error:
        return "different private settings" in str(error)
    return False


def users_are_refused(data: UserData, users: Users) -> str:
    """In which words; nothing where they may be drawn."""
    try:
        make_run(data, users=users)
    except InvalidInput as error:
        return str(error)
    return ""


def check_users(rank: int, x: Tensor) -> None:
    """Both ways of drawing: names are compared over the ranks, and all ranks refuse together."""
    numbers, texts = [1, 1, 2, 2], ["1", "1", "3", "3"]
    for together in (True, False):
        most = Users(2, together)
        shared = UserData(x[4 * rank :][:4], texts if rank else numbers)
        assert "two ranks" in users_are_refused(shared, most), together
        apart = UserData(x[4 * rank :][:4], [rank, rank, rank + 2, rank + 2])
        assert not users_are_refused(apart, most), together
        long = UserData(x[4 * rank :][:4], [rank] * 4 if rank else ["a", "a", "b", "b"])
        assert "some of these users" in users_are_refused(long, most), together


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    x = torch.randn(100, 3, generator=torch.Generator().manual_seed(5))
    coins = (torch.randn(400, 3, generator=torch.Generator().manual_seed(6)) > 0).float()
    mixed = x[torch.randperm(100, generator=torch.Generator().manual_seed(rank))]
    bad: dict[str, Any] = {
        "the whole data each": x,
        "the whole data in another order": mixed,
        "the whole data as items": Items(x),
        "the whole of common records": coins,
        "one inside the other": x if rank else x[:30],
        "overlapping slices": x[:60] if rank else x[50:],
        "one record": x[:51] if rank else x[50:],
        "records that many people share": coins[rank::2],
    }
    good: dict[str, Any] = {
        "every second row": x[rank::2],
        "halves, as items": Items(x[50 * rank :][:50]),
        "an empty share": x if rank else x[:0],
    }
    for name, data in bad.items():
        assert refused(data), name
    for name, data in good.items():
        assert not refused(data), name
    assert not refused(coins[rank::2], fingerprint=f"coins, part {rank}")
    assert half_seeded_is_refused(rank, x[rank::2])
    check_users(rank, x)
    assert make_run(x[rank::2]).fingerprint is not None
    dist.barrier()
    os._exit(0)  # gloo's threads now and then abort a process that ends in the ordinary way


if __name__ == "__main__":
    main()
