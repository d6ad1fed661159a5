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
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    held = [(module, _plain(module)) for module in model.modules()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                if not torch.equal(buffer, before):  # a graph may hold it
                    buffer.copy_(before)
        for module, attributes in held:
            for name in set(_plain(module)) - set(attributes):
                delattr(module, name)
            for name, value in attributes.items():
                module.__dict__[name] = value


def _plain(module: torch.nn.Module) -> dict[str, Any]:
    """Numbers, tensors and collections that the module's own code keeps; hooks stay alone."""
    return {
        name: _copy(value)
        for name, value in vars(module).items()
        if isinstance(value, (*PLAIN, *GATHERED, Tensor)) and name not in _FRAMEWORK
    }


_FRAMEWORK = frozenset(vars(torch.nn.Module()))


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.copy(value)
