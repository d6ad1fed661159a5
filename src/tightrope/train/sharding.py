"""How a sharded model is trained: in parts where that can be, else gathered for each step."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from tightrope.errors import InvalidInput
from tightrope.train.in_parts import InParts
from tightrope.train.scattered import SplitsNoise
from tightrope.train.sharded import Sharding, is_sharded, local_part, sharded_modules
from tightrope.train.units import Unit, hooks_of, units_of

__all__ = ["sharding_of"]


def sharding_of(
    model: nn.Module, arithmetic: object, noise: object, gradients: object
) -> Sharding | InParts:
    """In parts where that can be; where it cannot, a warning says why."""
    modules = sharded_modules(model)
    if not modules:
        return Sharding(modules)
    _check_version(modules)
    units = units_of(model)
    why = _why_whole(model, units, arithmetic, noise, gradients)
    if why is None:
        return InParts(model, units)
    warnings.warn(
        f"The weights of this sharded model are gathered whole for every step: {why}. They and "
        "their sums must fit on every rank.",
        stacklevel=4,
    )
    return Sharding(modules)


def _check_version(modules: list[Any]) -> None:
    if not all(hasattr(module, "set_reshard_after_forward") for module in modules):
        raise InvalidInput(
            f"This model is sharded by PyTorch {torch.__version__}, whose FSDP cannot be told to "
            "keep weights gathered. Install PyTorch 2.8 or later, or do not shard the model: "
            "several processes then train copies of it."
        )


def _why_whole(
    model: nn.Module,
    units: dict[nn.Module, Unit],
    arithmetic: object,
    noise: object,
    gradients: object,
) -> str | None:
    if arithmetic == "strict":
        return "in strict mode an example's whole gradient is formed before it is rounded"
    if gradients is not None:
        return f"{type(gradients).__name__} was given, which knows nothing of parts"
    if not isinstance(noise, SplitsNoise):
        return f"{type(noise).__name__} cannot be drawn by each rank for its own coordinates"
    if any(_is_foreign(p) for unit in units.values() for p in unit.shards):
        return "shards are kept in main memory, or in a format of their own"
    if _tied_across(model, units):
        return "two units share a parameter, or it belongs to none"
    if not all(_is_known(root, unit.state) for unit in units.values() for root in unit.roots):
        return "the hooks of this version of FSDP are not known"
    return None


def _is_foreign(shard: Any) -> bool:
    local = local_part(shard)
    return type(local) is not Tensor or local.device.type != shard.device_mesh.device_type


def _tied_across(model: nn.Module, units: dict[nn.Module, Unit]) -> bool:
    owners: dict[int, set[int]] = {}
    for module in model.modules():
        for p in module._parameters.values():
            if p is not None and is_sharded(p):
                owners.setdefault(id(p), set()).add(id(units.get(module)))
    return any(len(found) > 1 or id(None) in found for found in owners.values())


def _is_known(module: nn.Module, state: object) -> bool:
    needed = ("_mp_policy", "_lazy_init", "_pre_forward", "_post_forward")
    hooks = (module._forward_pre_hooks, module._forward_hooks)
    return all(hasattr(state, name) for name in needed) and all(
        hooks_of(of_kind, state) for of_kind in hooks
    )
