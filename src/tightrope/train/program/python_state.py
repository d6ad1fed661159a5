"""What a model and a loss keep in Python from one call to the next.

All that can be reached from the model, from the loss and from the globals that they name is noted
before the loss is captured. Afterwards it is compared, object by object, and put back.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_ATOMS = (int, float, complex, str, bytes, bool, type(None), type, types.ModuleType)
_KEEPERS = (dict, list, set, deque, Tensor, np.ndarray)
_DEEPEST = 6
# The weights of nn.LSTM and its like in a list, which follows each weight that is set.
_OF_RECURRENT = ("_flat_weights", "_flat_weight_refs")


@dataclass
class _Place:
    """Entries that may change: a dictionary by key, else a list."""

    path: str
    read: Callable[[], Any]  # a plain copy
    write: Callable[[Any], None]
    put: Callable[[Any, Any], None] | None = None  # one entry of a dictionary; _GONE removes it

    def __post_init__(self) -> None:
        self.before = self.read()


_GONE = object()


class Memory:
    """Containers and objects as they were, with their entries."""

    def __init__(self, *roots: Any) -> None:
        self._seen: dict[int, Any] = {}
        self._places: list[_Place] = []
        self._arrays: list[tuple[str, Any, Any]] = []  # path, tensor or array, its state
        for root in roots:
            self._note(root, "the model" if isinstance(root, nn.Module) else "the loss", 0)

    def _note(self, value: Any, path: str, depth: int) -> None:
        if isinstance(value, _ATOMS) or id(value) in self._seen or depth > _DEEPEST:
            return
        self._seen[id(value)] = value
        deeper = depth + 1
        if isinstance(value, Tensor | np.ndarray):
            self._arrays.append((path, value, _state(value)))
        elif isinstance(value, dict):
            self._places.append(_of_dictionary(path, value))
            for key, one in dict.items(value):  # not as a subclass may give them out
                self._note(one, f"{path}[{key!r}]", deeper)
        elif isinstance(value, list | tuple | deque | set | frozenset):
            self._places.append(_of_list(path, value))
            for at, one in enumerate(value):
                self._note(one, f"{path}[{at}]", deeper)
        elif isinstance(value, nn.Module):
            for name, module in value.named_modules():
                here = f"{path}.{name}" if name else path
                self._seen[id(module)] = module
                self._note_attributes(module, here, 0)
                if isinstance(type(module).forward, types.FunctionType):
                    self._note_function(type(module).forward, here, 0)
        elif isinstance(value, functools.partial):
            for one in (value.func, value.args, value.keywords):
                self._note(one, path, deeper)
        elif isinstance(value, types.MethodType):
            self._note(value.__self__, path, deeper)
            self._note(value.__func__, path, deeper)
        elif isinstance(value, types.FunctionType):
            self._note_function(value, path, depth)
        elif not _is_of_library(type(value).__module__):
            self._note_attributes(value, path, depth)

    def _note_attributes(self, value: Any, path: str, depth: int) -> None:
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict):
            return
        self._note_class(type(value))
        self._places.append(_of_dictionary(path, attributes))
        for key, one in attributes.items():
            if key != "_modules":  # noted by name
                self._note(one, f"{path}.{key}", depth + 1)

    def _note_class(self, kind: type) -> None:
        """What the class itself keeps, its methods, and those that it inherits from."""
        for one in kind.__mro__:
            if id(one) in self._seen or _is_of_library(one.__module__):
                continue
            self._seen[id(one)] = one
            self._places.append(_of_class(one))
            installed = "site-packages" in getattr(sys.modules.get(one.__module__), "__file__", "")
            for key, value in vars(one).items():
                # Of what is installed, methods are too many; only their class is noted.
                if isinstance(value, _KEEPERS) or not (installed or key.startswith("__")):
                    self._note(value, f"the class {one.__name__}.{key}", 1)

    def _note_function(self, function: types.FunctionType, path: str, depth: int) -> None:
        """Its attributes, what it encloses, and the globals that it names."""
        if _is_of_library(function.__module__ or ""):
            return
        self._note_attributes(function, path, depth)
        cells = zip(function.__closure__ or (), function.__code__.co_freevars, strict=False)
        for cell, name in cells:
            read = functools.partial(getattr, cell, "cell_contents")
            write = functools.partial(setattr, cell, "cell_contents")
            try:
                self._places.append(_of_value(f"the variable {name}", read, write))
            except ValueError:  # not bound yet
                continue
            self._note(read(), f"the variable {name}", depth + 1)
        for default in function.__defaults__ or ():
            self._note(default, f"a default of {function.__name__}", depth + 1)
        known = function.__globals__
        for name in _names(function.__code__) & known.keys():
            read, write = functools.partial(known.get, name), functools.partial(_put, known, name)
            self._places.append(_of_value(f"the global {name}", read, write))
            self._note(known[name], f"the global {name}", depth + 1)

    def changes(self, *, tensors: bool = True) -> list[str]:
        """What is not as it was; tensors are named so. tensors: also look for writes in place."""
        found = []
        for place in self._places:
            before, now, path = place.before, place.read(), place.path
            if path.endswith(_OF_RECURRENT):
                continue
            if isinstance(before, dict):
                for key in _changed(before, now):
                    plain = isinstance(key, str) and key.isidentifier()
                    if key not in _OF_RECURRENT:
                        where = f"{path}.{key}" if plain else f"{path}[{key!r}]"
                        found.append(_named(where, now.get(key)))
            elif not _equal(before, now):
                found.append(_named(path, *now))
        for path, value, state in self._arrays:
            if (tensors or not isinstance(value, Tensor)) and _state(value) != state:
                found.append(f"{path} (a tensor)")
        return found

    def again(self) -> list[Callable[[], None]]:
        """Functions that make the same changes again, but for tensors."""
        made: list[Callable[[], None]] = []
        for place in self._places:
            if place.put is not None:
                now = place.read()
                for key in _changed(place.before, now):
                    value = now.get(key, _GONE)
                    if not isinstance(value, Tensor):
                        made.append(functools.partial(place.put, key, value))
        return made

    def restore(self) -> None:
        """Put entries back. Numbers within tensors and arrays are not written by a capture."""
        for place in self._places:
            before, now = place.before, place.read()
            if isinstance(before, dict):
                if _changed(before, now):
                    place.write(before)
            elif len(before) != len(now) or any(
                a is not b for a, b in zip(before, now, strict=True)
            ):
                place.write(before)


def _of_dictionary(path: str, value: dict[Any, Any]) -> _Place:
    kind: Any = OrderedDict if isinstance(value, OrderedDict) else dict

    def write(before: dict[Any, Any]) -> None:
        kind.clear(value)
        for key, one in before.items():
            kind.__setitem__(value, key, one)

    put = functools.partial(_put, value)
    return _Place(path, lambda: dict(dict.items(value)), write, put)


def _put(into: Any, key: Any, value: Any) -> None:
    if value is _GONE:
        into.pop(key, None)
    else:
        into[key] = value


def _of_list(path: str, value: Any) -> _Place:
    def write(before: list[Any]) -> None:
        if isinstance(value, list | deque | set):
            value.clear()
            (value.update if isinstance(value, set) else value.extend)(before)

    return _Place(path, lambda: list(value), write)


def _of_value(path: str, read: Callable[[], Any], write: Callable[[Any], None]) -> _Place:
    return _Place(path, lambda: [read()], lambda before: write(before[0]))


def _of_class(kind: type) -> _Place:
    def put(key: str, value: Any) -> None:
        if value is not _GONE:
            setattr(kind, key, value)
        elif key in vars(kind):
            delattr(kind, key)

    def write(before: dict[str, Any]) -> None:
        for key in _changed(before, dict(vars(kind))):
            put(key, before.get(key, _GONE))

    return _Place(f"the class {kind.__name__}", lambda: dict(vars(kind)), write, put)


def _names(code: types.CodeType) -> set[str]:
    """Names that a function uses, and the functions within it."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _changed(before: dict[Any, Any], now: dict[Any, Any]) -> list[Any]:
    """Keys of what is new, gone or another."""
    both = sorted({*before, *now}, key=str)
    return [k for k in both if k not in before or k not in now or not _equal(before[k], now[k])]


def _equal(a: Any, b: Any) -> bool:
    """The same object, equal numbers or texts, or a list or dictionary of such.

    torch.export itself replaces the lists and tuples of a module by equal ones.
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, int | float | complex | str | bytes | torch.Size):
        return bool(a == b or (a != a and b != b))
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return list(a) == list(b) and not _changed(dict(dict.items(a)), dict(dict.items(b)))
    return isinstance(a, set | frozenset) and bool(a == b)


def _state(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.size < 1 << 20 else None
    no_data = value.is_meta or type(value) not in (Tensor, nn.Parameter, nn.Buffer)
    return value._version, 0 if no_data else value.data_ptr(), value.requires_grad


def _named(path: str, *now: Any) -> str:
    return f"{path} (a tensor)" if any(isinstance(x, Tensor) for x in now) else path


def _is_of_library(name: str) -> bool:
    """Modules whose own state is no memory of the user's program."""
    return name.split(".")[0] in {"torch", "numpy", "builtins", "tightrope", "logging", "typing"}
