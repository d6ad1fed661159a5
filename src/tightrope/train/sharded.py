"""Models whose parameters are sharded over the ranks (FSDP2, `fully_shard`).

Where they can, they stay in parts all the time (`in_parts`). Here is the other way, for what needs
whole weights: they are gathered once a step, when a batch is drawn, and stay whole for all forward
and backward passes of the step. Then the engine sees ordinary parameters, and the noisy sum is
formed as for models that are not sharded. Each rank keeps its part of the sum. At rest, weights and
optimizer state are sharded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast, final

import torch.distributed as dist
from torch import Tensor, nn

from tightrope.errors import InvalidInput
from tightrope.train.gradients.rounding import NOTHING

__all__ = [
    "Sharding",
    "check_whole",
    "gathered",
    "is_sharded",
    "local_part",
    "placed_like",
    "rows_of_each",
    "sharded_modules",
    "with_rows",
]


def is_sharded(parameter: Tensor) -> bool:
    """Whether it is a DTensor, which has placements."""
    return hasattr(parameter, "placements")


def local_part(parameter: Tensor) -> Tensor:
    """What this rank holds of a parameter."""
    return cast(Any, parameter)._local_tensor if is_sharded(parameter) else parameter


def check_whole(parameters: Iterable[Tensor]) -> None:
    """A gradient engine must have been made for gathered parameters."""
    if any(is_sharded(parameter) for parameter in parameters):
        raise InvalidInput(
            "The gradient engine was made for the shards of a model, and no shard has an example's "
            "whole gradient. Leave `gradients` out: the run makes one for the gathered model."
        )


@final
class Sharding:
    """Gathers and shards the parameters of a model; of an ordinary model it does nothing."""

    in_parts = False

    def __init__(self, modules: list[Any]) -> None:
        self._modules = modules
        for module in modules:
            module.set_reshard_after_forward(False, recurse=False)
            module.set_reshard_after_backward(False, recurse=False)
            module.set_requires_gradient_sync(False, recurse=False)

    def __bool__(self) -> bool:
        return bool(self._modules)

    @property
    def gathered(self) -> bool:
        """Whether weights are there in steps alone, in which all ranks run alike."""
        return bool(self)

    def gather(self) -> None:
        """Whole parameters on every rank. All ranks call it once for each step."""
        for module in self._modules:
            module.unshard()

    def release(self) -> None:
        """Keep the shards only."""
        for module in self._modules:
            module.reshard()

    def close(self) -> None:
        """Nothing was put on the model."""

    def shares(self, stepped: Sequence[Tensor]) -> None:
        """Every rank has whole sums."""

    def taking(self) -> AbstractContextManager[None]:
        """Sums formed inside belong to the step: they stay on this rank until it is released."""
        return NOTHING

    def finish(self) -> None:
        """Ranks meet when the noisy sum is formed."""

    def failed(self) -> None:
        """Nothing of a part of a batch that failed has left this rank."""

    def abandon(self) -> None:
        """Nor of a batch that is given up."""

    def differentiated(self) -> list[Tensor]:
        """Parameters that FSDP differentiates beside those of the engine: none."""
        return []

    def part(self, parameter: Tensor, total: Tensor) -> Tensor:
        """What becomes the gradient of `parameter`, of a sum over the whole of it."""
        return placed_like(parameter, total)


def placed_like(parameter: Tensor, whole: Tensor) -> Tensor:
    """A whole value laid out as a parameter is: this rank keeps its rows of it."""
    if not is_sharded(parameter):
        return whole
    mine = local_part(parameter)
    start = min(dist.get_rank() * rows_of_each(parameter), len(whole))
    return with_rows(parameter, whole[start : start + len(mine)].to(mine.device))


def with_rows(parameter: Tensor, mine: Tensor) -> Tensor:
    """A value laid out as a sharded parameter is, of which this rank has these rows."""
    from torch.distributed.tensor import DTensor

    sharded = cast(Any, parameter)
    return DTensor.from_local(
        mine, sharded.device_mesh, sharded.placements, run_check=False,
        shape=parameter.shape, stride=parameter.stride(),
    )  # fmt: skip


def rows_of_each(parameter: Tensor) -> int:
    """Rows of a rank: as torch.chunk cuts, all parts but the last ones are full."""
    return -(-len(parameter) // dist.get_world_size())


def gathered(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole values in main memory on rank 0, parts elsewhere. All ranks call it alike.

    One value at a time, so that no device needs room for more than the largest.
    """
    values = dict(named)
    for name, value in named.items():
        if is_sharded(value):
            whole: Tensor = cast(Any, value).full_tensor()
            values[name] = whole.cpu() if dist.get_rank() == 0 else value
    return values


def sharded_modules(model: nn.Module) -> list[Any]:
    """The modules that fully_shard was called with; none of an ordinary model."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    modules: list[Any] = [m for m in model.modules() if fsdp and isinstance(m, fsdp.FSDPModule)]
    for module in modules:
        module.reshard()  # a forward pass leaves the outermost whole
    named = [(n, p) for n, p in model.named_parameters() if is_sharded(p)]
    if named:
        _check_placements(named, bool(modules))
    return modules


def _check_placements(named: list[tuple[str, Any]], managed: bool) -> None:
    from torch.distributed.tensor import Shard

    ranks = dist.get_world_size()
    odd = [n for n, p in named if p.placements != (Shard(0),) or p.device_mesh.size() != ranks]
    if not managed or odd:
        raise InvalidInput(
            f"The parameters {(odd or [n for n, _ in named])[:3]} are distributed tensors, but not "
            f"sharded along their first dimension over all {ranks} ranks by fully_shard(model). "
            "Tensor parallel and hybrid layouts are not supported: shard over one mesh of all "
            "ranks, or give every rank the whole model."
        )
