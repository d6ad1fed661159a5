"""What a rehearsed batch leaves behind, put back: draws, what the model holds, and schedules."""

from __future__ import annotations

import copy
import gc
import random
import sys
from collections.abc import Iterator
from types import FrameType, FunctionType, ModuleType
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from tightrope.train.gradients.rounding import ExactLayers
from tightrope.train.held import (
    GENERATORS,
    generators_of,
    put_back,
    remember,
    seed_generator,
    set_generator,
    state_of,
)

__all__ = ["Aside", "Calm"]

_FRAMES, _DEPTH, _LENGTH = 20, 3, 100  # how far generators of the loop are looked for
_NOT_INSIDE = (Tensor, type, ModuleType, nn.Module)

Seen = dict[int, tuple[int, object]]  # depths, and what was looked into


@final
class Aside:
    """Remembers all this when it is made.

    Of generators: PyTorch's, NumPy's and Python's own, those that the model holds, and those that
    the functions under way have among their variables.
    sharded: then the model holds what gathers its weights, and is left alone.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, sharded: bool = False
    ) -> None:
        self._model, self._held = model, None if sharded else remember(model)
        self._devices = sorted({p.device for p in model.parameters() if p.is_cuda}, key=str)
        self._draws = self._state()
        self._generators = [(found, state_of(found)) for found in _of_the_loop()]
        self._groups = [(group, _values(group)) for group in optimizer.param_groups]
        self._schedules = [(held, _values(held)) for held in _schedules(optimizer)]
        optimizer._opt_called = True  # type: ignore[attr-defined]  # else schedules complain

    def put_back(self) -> None:
        if self._held is not None:
            put_back(self._model, self._held)
        python, numpy, cpu, cuda = self._draws
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)
        for device, state in zip(self._devices, cuda, strict=True):
            torch.cuda.set_rng_state(state, device)
        for generator, state in self._generators:
            set_generator(generator, state)
        for holder, values in (*self._groups, *self._schedules):
            _set(holder, values)

    def stir(self, seed: int) -> None:
        """What is drawn next is something else, and the same for the same seed."""
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        own = [] if self._held is None else generators_of(self._model)
        devices = [torch.cuda.default_generators[device.index or 0] for device in self._devices]
        found = [generator for generator, _ in self._generators]
        for generator in (torch.default_generator, *devices, *own, *found):
            seed_generator(generator, seed)

    def _state(self) -> tuple[Any, Any, Tensor, list[Tensor]]:
        cuda = [torch.cuda.get_rng_state(device) for device in self._devices]
        return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda  # noqa: NPY002


@final
class Calm:
    """All modules but the model itself in evaluation mode: no dropout, whatever the loop sets.

    Products of float32 are exact: in tf32 batches of different sizes differ by per cents.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modes = [(module, module.training) for module in model.modules()]
        _calm(model)
        self._exact = ExactLayers()
        self._handle = model.register_forward_pre_hook(_calm)

    def end(self) -> None:
        self._handle.remove()
        self._exact.end()
        for module, mode in self._modes:
            module.training = mode


def _calm(model: nn.Module, *_: Any) -> None:
    for module in model.modules():
        if module is not model:
            module.training = False


def _schedules(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The attributes of its schedules; PyTorch keeps no list of them."""
    found = gc.get_referrers(optimizer)
    held = [vars(thing) if issubclass(type(thing), LRScheduler) else thing for thing in found]
    return [thing for thing in held if type(thing) is dict and "last_epoch" in thing]


def _values(holder: dict[str, Any]) -> dict[str, Any]:
    """Copies of the values, but of parameters and of what a schedule belongs to."""
    plain = (Tensor, list, dict)
    return {
        key: (value, copy.copy(value) if not isinstance(value, Tensor) else value.clone())
        if isinstance(value, plain)
        else (value, value)
        for key, value in holder.items()
        if key not in ("params", "optimizer")
    }


def _set(holder: dict[str, Any], values: dict[str, Any]) -> None:
    for key, (value, kept) in values.items():
        if isinstance(value, Tensor):
            value.copy_(kept)
            holder[key] = value
        else:
            holder[key] = copy.copy(kept) if kept is not value else value


def _of_the_loop() -> list[Any]:
    """Generators among the variables of the functions under way."""
    found: dict[int, Any] = {}
    frame: FrameType | None = sys._getframe()
    spaces: dict[int, Any] = {}
    for _ in range(_FRAMES):
        if frame is None:
            break
        if not _ours(frame.f_globals.get("__name__", "")):
            spaces[id(frame)] = dict(frame.f_locals)
            spaces[id(frame.f_globals)] = dict(frame.f_globals)
        frame = frame.f_back
    seen: Seen = {}
    for space in spaces.values():
        for value in space.values():
            found |= {id(each): each for each in _inside(value, _DEPTH, seen)}
    return list(found.values())


def _inside(value: object, depth: int, seen: Seen) -> Iterator[Any]:
    """seen: how deep one has looked into what already; nothing new is found there."""
    kind = type(value)
    if issubclass(kind, GENERATORS):
        yield value
    elif depth > seen.get(id(value), (0, None))[0] and _may_hold(kind):
        seen[id(value)] = depth, value  # which keeps it, and its number
        for part in _parts(value, kind)[:_LENGTH]:
            yield from _inside(part, depth - 1, seen)


def _may_hold(kind: type) -> bool:
    return not (issubclass(kind, _NOT_INSIDE) or _ours(kind.__module__))


def _ours(module: Any) -> bool:
    """What the library draws for itself must never repeat."""
    return str(module).startswith("tightrope.")


def _parts(value: Any, kind: type) -> list[Any]:
    if kind in (list, tuple):
        return list(value[:_LENGTH])
    if kind is dict:
        return list(value.values())
    if kind is FunctionType:
        return [cell.cell_contents for cell in value.__closure__ or () if cell != type(cell)()]
    try:
        return list(object.__getattribute__(value, "__dict__").values())
    except AttributeError:
        return []
