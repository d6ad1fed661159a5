"""Processes as plain JSON data and back, field by field.

    {"type": "NoisySGD", "sampling": {"type": "PoissonSampling", "rate": 0.01}, ...}

The registry below is the whole vocabulary; anything else is refused, so reading a file never runs
code.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from tightrope.correlated import strategies
from tightrope.errors import InvalidInput
from tightrope.process import adjacency, composite, convex, mechanism, sampling, selection, training
from tightrope.process.adjacency import Adjacency, Released

__all__ = ["to_json", "from_json", "register"]

_CLASSES: dict[str, type] = {}
_ENUMS: dict[str, type[Enum]] = {
    "Adjacency": Adjacency,
    "Released": Released,
    "IterationNoise": convex.IterationNoise,
}


def register(cls: type) -> type:
    """Make a process class known to files."""
    _CLASSES[cls.__name__] = cls
    return cls


for _module in (
    strategies,
    adjacency,
    sampling,
    mechanism,
    training,
    composite,
    convex,
    selection,
):
    for _name in _module.__all__:
        _found = getattr(_module, _name)
        if isinstance(_found, type) and is_dataclass(_found):
            register(_found)


def to_json(value: object) -> Any:
    """A process (or a part of one) as dictionaries, lists, numbers and strings."""
    if isinstance(value, Enum):
        return {"type": type(value).__name__, "value": value.value}
    if is_dataclass(value) and not isinstance(value, type):
        known = _CLASSES.get(type(value).__name__)
        if known is not type(value):
            raise InvalidInput(f"{type(value).__name__} is not a registered process class.")
        content = {f.name: to_json(getattr(value, f.name)) for f in fields(value) if f.init}
        return {"type": type(value).__name__, **content}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InvalidInput(f"Cannot write {type(value).__name__} as part of a process.")


def from_json(data: object) -> Any:
    """The inverse of to_json; every constructor validates its fields."""
    if isinstance(data, list):
        return tuple(from_json(item) for item in data)
    if not isinstance(data, dict):
        return data
    name = data.get("type")
    if name in _ENUMS and set(data) == {"type", "value"}:
        return _ENUMS[name](data.get("value"))
    if name not in _CLASSES:
        allowed = ", ".join(sorted(_CLASSES))
        raise InvalidInput(f"Unknown process type {name!r}; known are {allowed}.")
    content = {key: from_json(item) for key, item in data.items() if key != "type"}
    try:
        return _CLASSES[name](**content)
    except TypeError as error:
        raise InvalidInput(f"{name} cannot be made from {sorted(content)}: {error}.") from None
