"""What one `fully_shard` call sharded together is gathered together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tightrope.train.sharded import is_sharded, local_part, rows_of_each

__all__ = ["Unit", "hooks_of", "units_of"]


@final
@dataclass(eq=False)
class Unit:
    """Parameters that are gathered together."""

    number: int
    state: Any  # FSDP's own
    roots: list[Any] = field(default_factory=list)  # what fully_shard was called with
    shards: list[Any] = field(default_factory=list)
    wholes: list[nn.Parameter] = field(default_factory=list)
    values: list[Tensor] | None = None  # while somebody is inside
    inside: int = 0
    versions: list[int] = field(default_factory=list)  # of the wholes when they came
    absent: type[nn.Parameter] = nn.Parameter  # what they are where nobody is inside

    def make_wholes(self, absent: type[nn.Parameter]) -> None:
        """Parameters without values, one for each shard."""
        self.absent = absent
        for shard in self.shards:
            nowhere = _nothing(self.state._mp_policy.param_dtype or shard.dtype, shard.device)
            whole = absent(nowhere.expand(shard.shape), requires_grad=shard.requires_grad)
            self.wholes.append(whole)

    def come(self, values: list[Tensor]) -> None:
        """Ordinary parameters, with their values."""
        self.values = values
        for whole, value in zip(self.wholes, values, strict=True):
            whole.__class__ = nn.Parameter
            whole.data = value
        self.versions = [whole._version for whole in self.wholes]

    def go(self) -> bool:
        """Without values again. Are those let go what they were?"""
        assert self.values is not None
        same = [whole._version for whole in self.wholes] == self.versions
        for whole, value in zip(self.wholes, self.values, strict=True):
            same = same and whole.data_ptr() == value.data_ptr()
            whole.data = _nothing(value.dtype, value.device).expand(value.shape)
            whole.__class__ = self.absent
        self.values = None
        return same

    def gathered(self) -> list[Tensor]:
        """The whole values, in memory of their own. All ranks call it together."""
        with torch.no_grad(), torch._C._DisableFuncTorch():
            pairs = zip(self.shards, self.wholes, strict=True)
            under_way = [_gather(shard, whole.dtype) for shard, whole in pairs]
            for _, work in under_way:
                work.wait()
        return [value for value, _ in under_way]


def units_of(model: nn.Module) -> dict[nn.Module, Unit]:
    """The unit of every module that is one, or has sharded parameters of its own."""
    from torch.distributed.fsdp import FSDPModule

    found: dict[nn.Module, Unit] = {}
    units: dict[int, Unit] = {}

    def visit(module: nn.Module, unit: Unit | None) -> None:
        if module in found:
            return
        if isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            unit = units.setdefault(id(state), Unit(len(units), state))
            unit.roots.append(module)
        own = [p for p in module._parameters.values() if p is not None and is_sharded(p)]
        if unit is not None and (own or isinstance(module, FSDPModule)):
            found[module] = unit
            unit.shards += [p for p in own if all(p is not other for other in unit.shards)]
        for child in module.children():
            visit(child, unit)

    visit(model, None)
    return found


def _gather(shard: Any, dtype: torch.dtype) -> tuple[Tensor, Any]:
    """The whole of it, and what has to be waited for before it is there."""
    group = shard.device_mesh.get_group()
    each = rows_of_each(shard)
    mine = local_part(shard).detach().to(dtype)
    if len(mine) < each:
        mine = torch.cat([mine, mine.new_zeros((each - len(mine), *mine.shape[1:]))])
    whole = mine.new_empty((each * group.size(), *mine.shape[1:]))
    parts = list(whole.chunk(group.size()))
    work = dist.all_gather(parts, mine.contiguous(), group=group, async_op=True)
    return whole[: len(shard)], work


@cache
def _nothing(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Stands for values that are not there."""
    return torch.full((1,), torch.nan, dtype=dtype, device=device)


def hooks_of(hooks: Mapping[int, Any], state: object) -> list[int]:
    """Keys of the hooks that belong to FSDP's state of a module."""

    def belongs(hook: Any) -> bool:
        while hook is not None and getattr(hook, "__self__", None) is not state:
            hook = getattr(hook, "__wrapped__", None)
        return hook is not None

    return [key for key, hook in hooks.items() if belongs(hook)]
