"""The state of an optimizer as files hold it: whole, however its parameters are laid out.

So a run that was stored by ranks with whole models can be resumed by as many with shards, and the
other way round.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.train.sharded import gathered, is_sharded, placed_like

__all__ = ["pack_optimizer", "unpack_optimizer"]


def pack_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as flat tensors and plain json; sharded tensors whole on rank 0."""
    whole, stepped = optimizer.state_dict(), _stepped(optimizer)
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for index, slots in whole["state"].items():
        for name, value in slots.items():
            target: dict[str, Any] = tensors if isinstance(value, Tensor) else plain
            target[f"{index}/{name}"] = value
            _check_whole(optimizer, stepped[index], name, value)
    packed = {"plain": plain, "param_groups": whole["param_groups"]}
    try:
        json.dumps(packed)
    except TypeError as error:
        raise InvalidInput(
            f"The state of {type(optimizer).__name__} holds more than tensors and plain values "
            f"({error}), which cannot be stored without running code on loading."
        ) from error
    return gathered(tensors), packed


def unpack_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], packed: dict[str, Any]
) -> None:
    """Give an optimizer the state that was stored, laid out as its parameters are."""
    stepped = _stepped(optimizer)
    state: dict[int, dict[str, Any]] = {}
    for key, value in packed["plain"].items():
        index, name = key.split("/", 1)
        state.setdefault(int(index), {})[name] = value
    for key, value in tensors.items():
        index, name = key.split("/", 1)
        placed = _placed(optimizer, stepped[int(index)], name, value)
        state.setdefault(int(index), {})[name] = placed
    groups = [
        {k: tuple(v) if isinstance(v, list) and k != "params" else v for k, v in group.items()}
        for group in packed["param_groups"]
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _stepped(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _placed(
    optimizer: torch.optim.Optimizer, parameter: Tensor, name: str, value: Tensor
) -> Tensor:
    """Of a sharded parameter, what has its shape is sharded as it is; single numbers are not."""
    if is_sharded(parameter) and value.shape == parameter.shape:
        return placed_like(parameter, value)
    if is_sharded(parameter) and value.numel() > 1:
        raise InvalidInput(
            f"The stored state {name!r} of {type(optimizer).__name__} has the shape "
            f"{tuple(value.shape)}, and its parameter {tuple(parameter.shape)}. Only single "
            "numbers and what has its parameter's shape can be shared out as a sharded model is; "
            "no step was taken. Resume with the whole model on every rank."
        )
    return value


def _check_whole(
    optimizer: torch.optim.Optimizer, parameter: Tensor, name: str, value: object
) -> None:
    """An ordinary tensor may be this rank's part, of which nobody knows the whole."""
    if not isinstance(value, Tensor) or is_sharded(value) or value.numel() <= 1:
        return
    if is_sharded(parameter):
        raise InvalidInput(
            f"{type(optimizer).__name__} keeps {name!r} of a sharded parameter as an ordinary "
            f"tensor of shape {tuple(value.shape)}. Each rank may have another part, and only rank "
            "0's would be stored. Use an optimizer whose state is sharded as the parameters are, "
            "such as torch.optim.Adam, or give every rank the whole model."
        )
