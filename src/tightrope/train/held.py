"""What a model holds besides its weights, and forward passes that leave no trace in it.

Buffers, and attributes of modules and their classes: tensors, arrays, numbers, sets and generators,
also inside lists, dictionaries and plain objects. A value that a forward pass computed for its own
backward pass (with a graph behind it) is none of them: it belongs to that pass.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tightrope.train.gradients.draws import same_draws

__all__ = [
    "GENERATORS",
    "as_it_was",
    "generators_of",
    "marks_of",
    "put_back",
    "remember",
    "seed_generator",
    "set_generator",
    "state_of",
    "tensors_held",
    "traceless",
    "untraced",
    "values_of",
]

_OWN = frozenset(nn.Module().__dict__) | {"_tightrope_gradients"}
_DEPTH, _LENGTH = 4, 10_000
_VALUES = (Tensor, np.ndarray, int, float, complex, set)
GENERATORS = (torch.Generator, np.random.Generator, random.Random)

Place = tuple[str, Any, Any]  # path, what holds the value, under which key
_passes = [0]  # forward passes under way that leave no trace


def untraced() -> bool:
    """Is a forward pass under way that is no part of the training?"""
    return _passes[0] > 0


def _places(model: nn.Module) -> Iterator[tuple[Place, Any]]:
    """Every place of the model that may hold state, and its value."""
    seen: set[int] = set()
    for name, module in model.named_modules():
        for kind in (module._buffers, module._parameters):
            for key, value in kind.items():
                yield (f"{name}.{key}".lstrip("."), kind, key), value
        own = module.__dict__
        for key in [key for key in own if key not in _OWN]:
            yield from _inside((f"{name}.{key}".lstrip("."), own, key), own[key], _DEPTH, seen)
        for kind in type(module).__mro__:
            if not (kind.__module__.startswith("torch.") or kind is object or id(kind) in seen):
                seen.add(id(kind))
                yield from _of_class(kind, seen)


def _of_class(kind: type, seen: set[int]) -> Iterator[tuple[Place, Any]]:
    for key, value in list(vars(kind).items()):
        if isinstance(value, (*_VALUES, *GENERATORS, list, dict, deque)) and key[:2] != "__":
            yield from _inside((f"{kind.__name__}.{key}", kind, key), value, _DEPTH, seen)


def _inside(place: Place, value: object, depth: int, seen: set[int]) -> Iterator[tuple[Place, Any]]:
    if isinstance(value, _VALUES + GENERATORS) or value is None:
        yield place, value
        return
    if depth == 0 or isinstance(value, (nn.Module, type)) or id(value) in seen:
        return
    if type(value).__module__.startswith("torch.distributed"):  # where shards are, not what is held
        return
    seen.add(id(value))
    if isinstance(value, (list, tuple, deque)):
        parts: Any = enumerate(value)
    elif isinstance(value, dict):
        parts = list(value.items())
    elif hasattr(value, "__dict__") and not callable(value):
        value, parts = value.__dict__, list(value.__dict__.items())
    else:
        return
    for number, (key, part) in enumerate(parts):
        if number < _LENGTH:
            yield from _inside((f"{place[0]}[{key!r}]", value, key), part, depth - 1, seen)


def tensors_held(model: nn.Module) -> list[Tensor]:
    """Buffers and other tensors, but no weights."""
    found = [value for _, value in _places(model) if isinstance(value, Tensor)]
    return [value for value in found if not isinstance(value, nn.Parameter)]


def _kept(value: object) -> bool:
    return not (isinstance(value, Tensor) and value.grad_fn is not None)


def marks_of(model: nn.Module) -> dict[str, Any]:
    """For each path something that changes when the value is replaced or written to."""
    return {place[0]: _mark(value) for place, value in _places(model) if _kept(value)}


def _mark(value: object) -> Any:
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, GENERATORS):
        return id(value)  # where it stands is no memory of the data
    if isinstance(value, set):
        return frozenset(value)
    return value.tobytes() if isinstance(value, np.ndarray) else repr(value)


def values_of(model: nn.Module, before: dict[str, Any]) -> dict[str, Any]:
    """Copies of what is not as it was marked."""
    found = {}
    for place, value in _places(model):
        if _kept(value) and before.get(place[0]) != _mark(value):
            found[place[0]] = _copy(value)
    return found


def _copy(value: object) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, GENERATORS):
        return state_of(value)
    return value.copy() if isinstance(value, (np.ndarray, set)) else value


def state_of(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, random.SystemRandom):
        return None
    return generator.get_state() if isinstance(generator, torch.Generator) else generator.getstate()


def set_generator(generator: Any, state: Any) -> None:
    """Put it where `state_of` found it; the system's own has no place."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif state is not None:
        generator.setstate(state)


@contextmanager
def traceless(
    model: nn.Module, written: frozenset[str] = frozenset(), seed: int = 0
) -> Iterator[None]:
    """Forward passes inside leave the model and all generators as they were.

    Generators start at a common place, so that two passes draw the same. Weights are put back only
    where named as `written`: copies of all of them would double the memory.
    """
    devices = {p.device for p in model.parameters()}
    chance = random.getstate(), np.random.get_state()  # noqa: NPY002
    _passes[0] += 1
    try:
        with as_it_was(model, written), same_draws(devices, seed):
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            _seed_own(model, seed)
            yield
    finally:
        _passes[0] -= 1
        random.setstate(chance[0])
        np.random.set_state(chance[1])  # noqa: NPY002


def _seed_own(model: nn.Module, seed: int) -> None:
    for value in generators_of(model):
        seed_generator(value, seed)


def generators_of(model: nn.Module) -> list[Any]:
    """Those that the model holds."""
    return [value for _, value in _places(model) if isinstance(value, GENERATORS)]


def seed_generator(generator: Any, seed: int) -> None:
    """The system's own cannot be seeded, and stays as it is."""
    if isinstance(generator, np.random.Generator):
        kind: Any = type(generator.bit_generator)
        generator.bit_generator.state = kind(seed).state
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    else:
        generator.seed(seed)


@contextmanager
def as_it_was(model: nn.Module, written: frozenset[str] = frozenset()) -> Iterator[None]:
    """The model afterwards holds what it held before; of weights only those `written`."""
    before = remember(model, written)
    try:
        yield
    finally:
        put_back(model, before)


def remember(
    model: nn.Module, written: frozenset[str] = frozenset()
) -> dict[str, tuple[Place, Any, Any]]:
    """All that the model holds, for put_back(); copies of weights only where `written`."""
    copies = {}
    for place, value in _places(model):
        weight = isinstance(value, nn.Parameter) and place[0] not in written
        copies[place[0]] = (place, value, _copy(value) if not weight and _kept(value) else value)
    return copies


def put_back(model: nn.Module, before: dict[str, tuple[Place, Any, Any]]) -> None:
    for path, holder, key in [place for place, _ in _places(model)]:
        if path not in before and isinstance(holder, (dict, list, deque, type)):
            _drop(holder, key)
    for (_, holder, key), value, copy in before.values():
        if isinstance(holder, (dict, list, deque, type)):
            _set(holder, key, value)
        if value is not copy:
            _write(value, copy)


def _drop(holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        holder.pop(key, None)
    elif isinstance(holder, type):
        delattr(holder, key)
    elif len(holder) > 0:
        holder.pop()


def _set(holder: Any, key: Any, value: Any) -> None:
    if isinstance(holder, type):
        if vars(holder).get(key) is not value:
            setattr(holder, key, value)
    elif isinstance(holder, dict) or key < len(holder):
        holder[key] = value


def _write(value: Any, copy: Any) -> None:
    with torch.no_grad():
        if isinstance(value, GENERATORS):
            set_generator(value, copy)
        elif isinstance(value, set):
            value.intersection_update(copy)
            value.update(copy)
        elif isinstance(value, np.ndarray):
            value[...] = copy
        elif not torch.equal(value, copy):  # a graph may hold it, and notice a write
            value.copy_(copy)
