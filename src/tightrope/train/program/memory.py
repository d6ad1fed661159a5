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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Memory"]

_ATOMS = (int, float, complex, str, bytes, bool, type(None), type, types.ModuleType)
_KEEPERS = (dict, list, set, deque, Tensor, np.ndarray)
_DEEPEST = 6
# The weights of nn.LSTM and its like in a list, which follows each weight that is set.
_OF_RECURRENT = ("_flat_weights", "_flat_weight_refs")


class Memory:
    """Containers and objects as they were, with their entries."""

    def __init__(self, *roots: Any) -> None:
        self._seen: dict[int, Any] = {}
        self._entries: list[tuple[str, Any, Any]] = []  # path, container, its entries as a copy
        self._arrays: list[tuple[str, Any, Any]] = []  # path, tensor or array, its state
        for root in roots:
            self._note(root, "the model" if isinstance(root, nn.Module) else "the loss", 0)

    def _note(self, value: Any, path: str, depth: int) -> None:
        if isinstance(value, _ATOMS) or id(value) in self._seen or depth > _DEEPEST:
            return
        self._seen[id(value)] = value
        if isinstance(value, Tensor | np.ndarray):
            self._arrays.append((path, value, _state(value)))
        elif isinstance(value, dict):
            self._entries.append((path, value, dict(dict.items(value))))
            for key, one in dict.items(value):  # not as a subclass may give them out
                self._note(one, f"{path}[{key!r}]", depth + 1)
        elif isinstance(value, list | tuple | deque | set | frozenset):
            self._entries.append((path, value, list(value)))
            for at, one in enumerate(value):
                self._note(one, f"{path}[{at}]", depth + 1)
        elif isinstance(value, nn.Module):
            self._note_module(value, path, depth)
        elif isinstance(value, functools.partial):
            for one in (value.func, value.args, value.keywords):
                self._note(one, path, depth + 1)
        elif isinstance(value, types.MethodType):
            self._note(value.__self__, path, depth + 1)
            self._note(value.__func__, path, depth + 1)
        elif isinstance(value, types.FunctionType):
            self._note_function(value, path, depth)
        elif _is_of_library(type(value).__module__):
            return
        else:
            self._note_attributes(value, path, depth)

    def _note_module(self, module: nn.Module, path: str, depth: int) -> None:
        for name, one in module.named_modules():
            here = f"{path}.{name}" if name else path
            self._seen[id(one)] = one
            self._note_attributes(one, here, 0)
            forward = type(one).forward
            if isinstance(forward, types.FunctionType):
                self._note_function(forward, here, 0)

    def _note_attributes(self, value: Any, path: str, depth: int) -> None:
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict):
            return
        self._note_class(type(value))
        self._entries.append((path, attributes, dict(attributes)))
        for key, one in attributes.items():
            if key == "_modules":
                continue  # noted by name
            self._note(one, f"{path}.{key}", depth + 1)

    def _note_class(self, kind: type) -> None:
        """What the class itself keeps, its methods, and those that it inherits from."""
        for one in kind.__mro__:
            if id(one) in self._seen or _is_of_library(one.__module__):
                continue
            self._seen[id(one)] = one
            self._entries.append((f"the class {one.__name__}", _Class(one), dict(vars(one))))
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
        for cell, name in zip(
            function.__closure__ or (), function.__code__.co_freevars, strict=False
        ):
            try:
                contents = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            self._entries.append((f"the variable {name}", cell, contents))
            self._note(contents, f"the variable {name}", depth + 1)
        for default in function.__defaults__ or ():
            self._note(default, f"a default of {function.__name__}", depth + 1)
        for name in _names(function.__code__):
            if name in function.__globals__:
                value = function.__globals__[name]
                self._entries.append((f"the global {name}", _Global(function, name), value))
                self._note(value, f"the global {name}", depth + 1)

    def changes(self, *, tensors: bool = True) -> list[str]:
        """What is not as it was; tensors are named so. tensors: also look for writes in place."""
        found = []
        for path, container, before in self._entries:
            if path.endswith(_OF_RECURRENT):
                continue
            now = _entries(container)
            if isinstance(before, dict):
                keys = [k for k in _keys(before, now) if not _same(before, now, k)]
                keys = [k for k in keys if k not in _OF_RECURRENT]
                found += [_named(path, key, dict.get(now, key)) for key in keys]
            elif isinstance(before, list):
                if len(now) != len(before) or any(
                    not _equal(a, b) for a, b in zip(before, now, strict=True)
                ):
                    tensor = any(isinstance(x, Tensor) for x in now)
                    found.append(f"{path} (a tensor)" if tensor else path)
            elif not _equal(before, now):
                found.append(f"{path} (a tensor)" if isinstance(now, Tensor) else path)
        for path, value, state in self._arrays:
            if (tensors or not isinstance(value, Tensor)) and _state(value) != state:
                found.append(f"{path} (a tensor)")
        return found

    def again(self) -> list[Callable[[], None]]:
        """Functions that make the same changes again, but for tensors."""
        made: list[Callable[[], None]] = []
        for _, container, before in self._entries:
            now = _entries(container)
            if isinstance(before, dict):
                for key in _keys(before, now):
                    value = dict.get(now, key)
                    if not _same(before, now, key) and not isinstance(value, Tensor):
                        made.append(functools.partial(_put, container, key, key in now, value))
        return made

    def restore(self) -> None:
        """Put entries back. Numbers within tensors and arrays are not written by a capture."""
        for _, container, before in self._entries:
            if isinstance(container, _Global | _Class):
                container.set(before)
            elif isinstance(container, types.CellType):
                container.cell_contents = before
            elif isinstance(container, dict):
                if any(not _same(before, container, k) for k in _keys(before, container)):
                    kind: Any = OrderedDict if isinstance(container, OrderedDict) else dict
                    kind.clear(container)
                    for key, one in before.items():
                        kind.__setitem__(container, key, one)
            elif isinstance(container, list | deque):
                if len(container) != len(before) or any(
                    a is not b for a, b in zip(container, before, strict=True)
                ):
                    container.clear()
                    container.extend(before)
            elif isinstance(container, set) and container != set(before):
                container.clear()
                container.update(before)


def _put(container: Any, key: Any, there: bool, value: Any) -> None:
    if there:
        container[key] = value
    else:
        container.pop(key, None)


class _Global:
    def __init__(self, function: types.FunctionType, name: str) -> None:
        self.globals, self.name = function.__globals__, name

    def get(self) -> Any:
        return self.globals.get(self.name)

    def set(self, value: Any) -> None:
        self.globals[self.name] = value


class _Class:
    """The attributes of a class."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __contains__(self, key: str) -> bool:
        return key in vars(self.kind)

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self.kind, key, value)

    def pop(self, key: str, _: Any) -> None:
        if key in self:
            delattr(self.kind, key)

    def get(self) -> dict[str, Any]:
        return dict(vars(self.kind))

    def set(self, before: dict[str, Any]) -> None:
        now = self.get()
        for key in _keys(before, now):
            if not _same(before, now, key):
                _put(self, key, key in before, before.get(key))


def _names(code: types.CodeType) -> set[str]:
    """Names that a function uses, and the functions within it."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _entries(container: Any) -> Any:
    if isinstance(container, _Global | _Class):
        return container.get()
    if isinstance(container, types.CellType):
        return container.cell_contents
    return container if isinstance(container, dict) else list(container)


def _same(before: dict[Any, Any], now: dict[Any, Any], key: Any) -> bool:
    return (
        dict.__contains__(before, key)
        and dict.__contains__(now, key)
        and _equal(dict.__getitem__(before, key), dict.__getitem__(now, key))
    )


def _keys(before: dict[Any, Any], now: dict[Any, Any]) -> list[Any]:
    return sorted({*dict.keys(before), *dict.keys(now)}, key=str)


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
        return list(a) == list(b) and all(_same(a, b, key) for key in dict.keys(a))
    if isinstance(a, set | frozenset):
        return bool(a == b)
    return False


def _state(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.size < 1 << 20 else None
    return value._version, value.data_ptr() if not _has_no_data(value) else 0, value.requires_grad


def _has_no_data(value: Tensor) -> bool:
    return value.is_meta or type(value) not in (Tensor, nn.Parameter, nn.Buffer)


def _named(path: str, key: Any, value: Any) -> str:
    where = f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{key!r}]"
    return f"{where} (a tensor)" if isinstance(value, Tensor) else where


def _is_of_library(name: str) -> bool:
    """Modules whose own state is no memory of the user's program."""
    return name.split(".")[0] in {"torch", "numpy", "builtins", "tightrope", "logging", "typing"}
