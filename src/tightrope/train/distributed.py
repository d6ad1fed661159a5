"""Several processes as one mechanism: noise once, sums added, everybody takes the same step.

Every rank holds a shard of the data and draws its own batches with a stream of its own; for
samplers that treat records independently this is exactly the one-process sampler on the whole.
Rank 0 adds the noise to its sum before the sums are added over the ranks, so no rank ever sees
a total without noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.train.noise import Noise
from tightrope.train.samplers import AbstractSampler
from tightrope.train.sharded import is_sharded

__all__ = [
    "rank_and_size",
    "sum_over_ranks_",
    "start_together",
    "check_splits",
    "check_one_copy",
]


def rank_and_size() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def sum_over_ranks_(sums: Sequence[Tensor]) -> None:
    """Add the sums of all ranks in place, one message per dtype."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for total in sums:
        by_dtype.setdefault(total.dtype, []).append(total)
    for group in by_dtype.values():
        flat = torch.cat([total.reshape(-1) for total in group])
        dist.all_reduce(flat)
        parts = torch.split(flat, [total.numel() for total in group])
        for total, part in zip(group, parts, strict=True):
            total.copy_(part.view_as(total))


def start_together(model: torch.nn.Module, facts: dict[str, Any]) -> None:
    """Same privacy settings on every rank, and the weights and buffers of rank 0."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, facts)
    if any(other != facts for other in gathered):
        raise InvalidInput(
            f"The ranks were started with different private settings: {gathered}. Build the same "
            "sampler, clip, noise and expected batch size on every rank."
        )
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if not is_sharded(tensor):  # the shards of the ranks are one model already
                dist.broadcast(tensor, src=0)


def check_splits(sampler: AbstractSampler, noise: Noise) -> None:
    if not noise.splits_over_ranks:
        raise InvalidInput(
            f"{type(noise).__name__} must see the whole sum to put it on its grid; sums that other "
            "ranks add afterwards would lie beside it. Use GaussianNoise with several ranks."
        )
    if not sampler.splits_over_ranks:
        raise InvalidInput(
            f"{type(sampler).__name__} on each rank's shard is not the same sampler on the whole "
            "dataset, so its accounting does not apply. With several ranks use PoissonSampler or "
            "BallsInBinsSampler."
        )


def check_one_copy(model: torch.nn.Module) -> None:
    """Each rank must hold the bare model."""
    if isinstance(model, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)):
        raise InvalidInput(
            f"Got a model wrapped in {type(model).__name__}, which adds up raw gradients over the "
            "ranks on its own. Pass the bare model: the private step adds the clipped sums up."
        )
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise InvalidInput(
            "Got a model wrapped in FullyShardedDataParallel (FSDP1), whose flat parameters hide "
            "the layers' own. Shard it with torch.distributed.fsdp.fully_shard(model) instead."
        )
