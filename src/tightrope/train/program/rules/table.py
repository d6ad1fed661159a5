"""The table: which rule labels which operator. A closed list of overloads of ATen."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from tightrope.train.program.labels import without

if TYPE_CHECKING:
    from tightrope.train.program.labels import Label
    from tightrope.train.program.proof import Call

Rule = Callable[["Call"], "Label"]

RULES: dict[torch._ops.OpOverload, Rule] = {}
# Operators that make new dimensions or new random numbers: their rule is asked even where all
# arguments are public, because the result may have one row for each example.
MAKERS: set[torch._ops.OpOverload] = set()
# Operators whose rule carries Index along. Every other one takes the numbers of rows as public.
KEEPS_INDEX: set[torch._ops.OpOverload] = set()
# Operators that are always refused: why, and what to do.
NEVER: dict[torch._ops.OpOverload, tuple[str, str]] = {}
# Operators that may be applied to public arguments only. They are functions of their arguments:
# they read no file, no memory that was left, and write to nothing.
PURE: set[torch._ops.OpOverload] = set()

# Operators that read a size.
SIZES_OF = {
    torch.ops.aten.sym_size.int,
    torch.ops.aten.sym_numel.default,
    torch.ops.aten.sym_stride.int,
    torch.ops.aten.sym_storage_offset.default,
}

# Arithmetic of sizes, by its name in the text of a program.
ARITHMETIC: dict[Callable[..., Any], str] = {
    getattr(module, name): f"{module.__name__}.{name}"
    for module, names in [
        (operator, "add sub mul floordiv truediv mod neg pow eq ne lt le gt ge and_ or_ not_"),
        (torch, "sym_max sym_min sym_float sym_int sym_not sym_ite"),
        (math, "ceil floor trunc"),
    ]
    for name in names.split()
}


def overloads(names: str, only: Callable[[Any], bool] = lambda op: True) -> list[Any]:
    """The overloads of these operators that return new values and write to nothing.

    `sum` stands for all its overloads, `sum.dim_IntList` for one. A name that this version of
    torch does not have is left out: the operator is then refused wherever it comes up.
    """
    found: list[Any] = []
    for name in names.split():
        packet_name, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, packet_name, None)
        if packet is None:
            continue
        for key in [overload] if overload else packet.overloads():
            op = getattr(packet, key, None)
            if op is not None and not op._schema.is_mutable and only(op) and _is_plain(op):
                found.append(op)
    return list(dict.fromkeys(found))


def _is_plain(op: Any) -> bool:
    """Named dimensions and Python's own scalars are no part of an exported graph."""
    named = any("Dimname" in str(argument.type) for argument in op._schema.arguments)
    return not named and all("Tensor" in str(one.type) for one in op._schema.returns)


def _new(ops: Iterable[Any]) -> Iterable[Any]:
    for op in ops:
        if op in RULES or op in NEVER or op in PURE:
            raise AssertionError(f"{op} has two rules")
        yield op


def rule(names: str, *, makes: bool = False, keeps_index: bool = False) -> Callable[[Rule], Rule]:
    """Enter a rule for the overloads of these operators."""

    def enter(function: Rule) -> Rule:
        for op in _new(overloads(names)):
            RULES[op] = function
            if makes:
                MAKERS.add(op)
            if keeps_index:
                KEEPS_INDEX.add(op)
        return function

    return enter


def along(
    names: str,
    dims: str | Callable[[Call, Any, int], Iterable[int]],
    *,
    of: str = "self input A",
    sizes: str = "",
    gone: bool = False,
    do: str = "",
) -> None:
    """Enter the rule of operators that work along some dimensions of one tensor.

    Each slice along these dimensions is worked on alone, so rows stay apart as long as their
    dimension is not among them. All other arguments are public.

    dims: the argument that names the dimensions (none named means all); or a function of the call,
    the tensor and its number of dimensions. of: the names under which the tensor may come. sizes:
    arguments that may follow the number of examples, since they only say how large a result is.
    gone: whether these dimensions go, unless the call says `keepdim`.
    """

    def label(c: Call) -> Label:
        (x,) = (c[name] for name in of.split() if name in c)
        for name in sizes.split():
            c.numbers(c.get(name))
        c.public_but(*of.split(), *sizes.split())
        counted = c.dims(x, c.get(dims)) if isinstance(dims, str) else list(dims(c, x, c.rank(x)))
        rows = c.untouched(x, counted, do)
        return c.each(without(rows, counted, keep=not gone or bool(c.get("keepdim"))))

    label.__name__ = names.split()[0].partition(".")[0]
    rule(names)(label)


def never(names: str, why: str, do: str) -> None:
    """Refuse these operators whatever their arguments are."""
    NEVER.update((op, (why, do)) for op in _new(overloads(names)))


def pure(names: str) -> None:
    """Allow these operators for public arguments."""
    PURE.update(_new(overloads(names)))
