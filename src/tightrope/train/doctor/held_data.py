"""Do loss, model or optimizer hold the private data themselves, beside the batch they are given?

A statistic of all records in the loss, or a step scaled by one, changes with no batch and so passes
every test on batches. What can be seen is that the code refers to the data: by a global name, by a
closure, or as an attribute of the optimizer or of a module.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from tightrope.train.doctor.verdict import Finding, fault, good
from tightrope.train.feed import Rows

if TYPE_CHECKING:
    from tightrope.train.feed import Data

__all__ = ["check_held_data"]

CHECK = "data held elsewhere"
LIBRARIES = ("torch", "tightrope", "transformers", "peft", "lightning", "builtins")


def check_held_data(
    data: Data, rows: Rows, model: torch.nn.Module, loss: object, optimizer: Optimizer | None = None
) -> list[Finding]:
    private = _Private(data, rows)
    found = sorted(
        {f"the {owner} reads {name}" for owner, name, value in _references(model, loss, optimizer)
         if private.has(value)}
    )  # fmt: skip
    if not found:
        return [good(CHECK, "loss, model and optimizer refer to no data but their batch")]
    return [
        fault(
            CHECK,
            f"{'; '.join(found[:5])}, which is the private data: what depends on all records is "
            "not bounded by clipping one of them",
        )
    ]


class _Private:
    """The data, whether referred to as an object or by the memory that it lies in."""

    def __init__(self, data: Data, rows: Rows) -> None:
        self._data = data
        arrays = [*(rows.arrays or ()), *getattr(data, "__dict__", {}).values()]
        self._spans = [span for span in map(_span, arrays) if span is not None]

    def has(self, value: object) -> bool:
        span = _span(value)
        if span is None:
            return value is self._data
        return any(span[0] < end and start < span[1] for start, end in self._spans)


def _span(value: object) -> tuple[int, int] | None:
    """Where the numbers of an array lie in memory; None for anything else."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        low, high = np.lib.array_utils.byte_bounds(value)
        return (low, high) if value.size else None
    if not isinstance(value, Tensor) or value.layout is not torch.strided or not value.numel():
        return None
    steps = sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
    start = value.data_ptr()
    return (start, start + (steps + 1) * value.element_size()) if start else None


def _references(
    model: Any, loss: object, optimizer: Optimizer | None
) -> Iterator[tuple[str, str, Any]]:
    for name, value in _read_by(loss) if _is_function(loss) else _attributes(loss):
        yield "loss", name, value
    for module in model.modules():
        for name, value in [*_attributes(module), *module.named_buffers(recurse=False)]:
            yield "model", name, value
    if optimizer is not None:
        for name, value in _attributes(optimizer):
            yield "optimizer", name, value
        for group in optimizer.param_groups:
            for name, value in group.items():
                yield "optimizer", name, value


def _attributes(thing: object) -> Iterator[tuple[str, Any]]:
    """An object's own values, and what the methods of its class read."""
    yield from vars(thing).items()
    for kind in type(thing).__mro__:
        if kind.__module__.split(".")[0] not in LIBRARIES:
            for function in vars(kind).values():
                yield from _read_by(function)
    for hooks in [value for name, value in vars(thing).items() if name.endswith("_hooks")]:
        for hook in getattr(hooks, "values", tuple)():
            yield from _read_by(hook)


def _read_by(function: object) -> Iterator[tuple[str, Any]]:
    """What a function's own code reads from around it, if it was not written in a library."""
    if isinstance(function, partial):
        yield from ((str(name), value) for name, value in enumerate(function.args))
        yield from function.keywords.items()
        function = function.func
    function = getattr(function, "__func__", getattr(function, "__wrapped__", function))
    if not isinstance(function, FunctionType):
        return
    if (function.__module__ or "").split(".")[0] in LIBRARIES:
        return
    for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not yet set
            continue
    for name in _global_names(function.__code__):
        yield name, function.__globals__.get(name)
    for value in function.__defaults__ or ():
        yield "a default", value


def _is_function(thing: object) -> bool:
    return isinstance(thing, partial | FunctionType | MethodType) or not hasattr(thing, "__dict__")


def _global_names(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)
