"""What Python reads of a module besides its arguments: modes, plain attributes, held tensors."""

from __future__ import annotations

from enum import Enum
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["plain_settings", "state_of"]

_OWN = frozenset(nn.Module().__dict__)  # what every module holds
_PLAIN = (bool, int, float, str)
_NUMBERS = (np.generic, complex, Enum, torch.dtype)
_SHORT = 16  # a list or a dictionary of settings, of which every entry is seen


def state_of(module: nn.Module) -> list[Any]:
    """Equal as long as neither the module nor a part of it was changed or written to."""
    return [(m.training, plain_settings(m), _held(m)) for m in module.modules()]


def plain_settings(module: nn.Module) -> list[Any]:
    """Of a module without its children."""
    return [
        value if type(value) in _PLAIN else _mark(value)
        for key, value in module.__dict__.items()
        if key not in _OWN
    ]


def _mark(value: Any) -> Any:
    """What changes when a setting of a module does; None of what may hold values of a batch."""
    kind = type(value)
    if kind in (list, tuple, set) and len(value) <= _SHORT:
        return [part if type(part) in _PLAIN else None for part in value]
    if kind is dict and len(value) <= _SHORT:
        return [(key, v) for key, v in value.items() if type(v) in _PLAIN]
    if isinstance(value, _NUMBERS):
        return value
    return _Itself(value) if callable(value) and kind is not Tensor else None


@final
class _Itself:
    """Something that is only equal to itself; it is held, so that nothing else takes its place."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def _held(module: nn.Module) -> list[tuple[_Itself, int]]:
    own = [value for value in module.__dict__.values() if isinstance(value, Tensor)]
    buffers = [value for value in module._buffers.values() if value is not None]
    return [(_Itself(t), 0 if t.is_inference() else t._version) for t in (*buffers, *own)]
