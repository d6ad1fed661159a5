"""Buffers and plain attributes of modules, put back as they were."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

__all__ = ["as_before"]

PLAIN = (bool, int, float, str, type(None))
GATHERED = (list, dict, set, tuple, deque)


@contextmanager
def as_before(model: torch.nn.Module) -> Iterator[None]:
    """What a forward pass leaves in buffers and attributes is undone afterwards."""
    held = [(space, _plain(space)) for module in model.modules() for space in _spaces(module)]
    try:
        yield
    finally:
        for space, values in held:
            _put_back(space, values)


def _spaces(module: torch.nn.Module) -> list[dict[str, Any]]:
    return [module.__dict__, module._buffers]


def _plain(space: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Numbers, tensors and collections that the module's own code keeps, and copies of them."""
    return {
        name: (value, _copy(value))
        for name, value in space.items()
        if isinstance(value, (*PLAIN, *GATHERED, Tensor)) and name not in _FRAMEWORK
    }


def _put_back(space: dict[str, Any], values: dict[str, tuple[Any, Any]]) -> None:
    for name in _plain(space).keys() - values.keys():
        del space[name]
    for name, (value, copied) in values.items():
        if isinstance(value, Tensor):
            space[name] = value
            if not torch.equal(value, copied):  # a graph may hold it, and notice a write
                with torch.no_grad():
                    value.copy_(copied)
        else:
            space[name] = copied


_FRAMEWORK = frozenset(vars(torch.nn.Module()))


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.copy(value)
