"""Operators that make tensors: constants, counts, random draws.

A tensor of equal numbers, or of independent draws, may have one row for each example wherever its
size follows the batch. Row numbers come from `arange(B)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tightrope.train.program.labels import PUBLIC, Index, Label, Mixes, Rows
from tightrope.train.program.rules.table import rule

if TYPE_CHECKING:
    from tightrope.train.program.proof import Call

# What does not decide which numbers a tensor is filled with.
_KIND = ("dtype", "layout", "device", "pin_memory", "memory_format", "generator")
_NO_NUMBER = "The run itself divides the noisy sum by the batch size."


def _equal_rows(c: Call, size: Sequence[Any]) -> Label:
    """The first dimension whose size follows the batch holds a row for each example."""
    label: Label = PUBLIC
    for dim, n in enumerate(size):
        follows = c.follows_batch(n)
        if label == PUBLIC and follows and c.number(n) % c.batch == 0:
            label = Rows(dim, 1, c.number(n) // c.batch)
    return label


@rule(
    "full zeros ones rand randn randint randint.low normal.float_float new_zeros new_ones new_full",
    makes=True,
)
def made(c: Call) -> Label:
    """Equal numbers, or one draw for each entry."""
    c.public(*map(c.get, _KIND))
    for name in ("fill_value", "low", "high", "mean", "std"):
        if name in c and c.label(c[name]) != PUBLIC:
            raise Mixes("a tensor is filled with a number that follows the batch", _NO_NUMBER)
    if "self" in c:
        c.label(c["self"])  # only its type is taken
    return _equal_rows(c, c["size"])


@rule(
    "zeros_like ones_like full_like rand_like randn_like randint_like randint_like.low_dtype",
)
def made_like(c: Call) -> Label:
    """As `made`, with the sizes of another tensor; nothing of its values is taken."""
    c.public_but("self")
    return c.rows(c["self"])


@rule("uniform normal_functional exponential geometric cauchy log_normal bernoulli.p random")
def drawn(c: Call) -> Label:
    """One draw for each entry of a tensor, whose values are not used."""
    return made_like(c)


@rule(
    "bernoulli.default bernoulli.Tensor normal.Tensor_float normal.float_Tensor "
    "normal.Tensor_Tensor"
)
def drawn_by(c: Call) -> Label:
    """One draw for each entry, with numbers of that entry."""
    return c.broadcast(*[v for v in c.arguments if isinstance(v, torch.fx.Node)])


@rule("multinomial")
def multinomial(c: Call) -> Label:
    """Some draws from each row of weights."""
    c.public_but("self")
    return c.untouched(c["self"], -1, "draws")


@rule("arange.default arange.start arange.start_step", makes=True)
def arange(c: Call) -> Label:
    """start, start + step, ...: the numbers of the rows if they are 0 .. B-1."""
    c.public(*map(c.get, _KIND))
    start = c.get("start", 0)
    step = c.get("step", 1)
    end = c["end"]
    if c.follows_batch(end):
        exact = c.value.dtype in (torch.int64, torch.int32)
        if start == 0 and step == 1 and exact and c.number(end) == c.batch:
            return Index(0)
    c.public(start, step)
    c.number(end)
    return PUBLIC


@rule("linspace logspace linspace.Tensor_Tensor", makes=True)
def linspace(c: Call) -> Label:
    c.public_but()
    return PUBLIC


@rule("eye eye.m", makes=True)
def eye(c: Call) -> Label:
    """Ones on the diagonal: as long as the batch, each row would know its place."""
    c.public_but()
    return PUBLIC


@rule("scalar_tensor randperm", makes=True)
def number(c: Call) -> Label:
    """One number; or the numbers 0 .. n-1 in a random order."""
    c.public(*map(c.get, _KIND))
    value = c["s"] if "s" in c else c["n"]
    if c.label(value) != PUBLIC:
        raise Mixes("the number of examples is used as a number", _NO_NUMBER)
    return PUBLIC
