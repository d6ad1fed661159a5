"""The state of an optimizer as files hold it: tensors, and plain json for the rest."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from tightrope.errors import InvalidInput

__all__ = ["pack_optimizer", "unpack_optimizer"]


def pack_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as flat tensors and plain json."""
    whole = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for index, slots in whole["state"].items():
        for name, value in slots.items():
            target: dict[str, Any] = tensors if isinstance(value, Tensor) else plain
            target[f"{index}/{name}"] = value
    packed = {"plain": plain, "param_groups": whole["param_groups"]}
    try:
        json.dumps(packed)
    except TypeError as error:
        raise InvalidInput(
            f"The state of {type(optimizer).__name__} holds more than tensors and plain values "
            f"({error}), which cannot be stored without running code on loading."
        ) from error
    return tensors, packed


def unpack_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], packed: dict[str, Any]
) -> None:
    """Give an optimizer the state that was stored."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in packed["plain"].items():
        index, name = key.split("/", 1)
        state.setdefault(int(index), {})[name] = value
    for key, value in tensors.items():
        index, name = key.split("/", 1)
        state.setdefault(int(index), {})[name] = value
    groups = [
        {k: tuple(v) if isinstance(v, list) and k != "params" else v for k, v in group.items()}
        for group in packed["param_groups"]
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
