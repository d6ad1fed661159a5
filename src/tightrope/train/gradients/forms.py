"""Gradients of all examples with respect to one parameter, not yet summed.

A *form* knows each of them without writing it out where that can be avoided: it gives their norms
(from above) and their sum, weighted. This module has what all forms share, and two of them: Dense,
simply written out, and TableRows, for tables of which an example reads a few rows.

Sums over examples are short float32 chains, their results added in float64. `chain` is the number
of examples in one float32 chain (`rounding.longest_chain`); 0 means float64 throughout. Where a
batch fits into one chain these are the plain products.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from math import prod
from typing import final

import torch
from torch import Tensor

from tightrope.train.gradients.rounding import TINY, exact_products, full_precision, usable

__all__ = [
    "chained_product",
    "chained_sum",
    "chained_total",
    "inside_product",
    "sum_of_parts",
    "BLOCK",
    "Dense",
    "Form",
    "TableRows",
    "blocked_squares",
    "by_kernel",
    "evenly",
    "keep_freed_memory",
    "scale_examples",
    "scratch",
    "scratch_scope",
    "short_row_squares",
    "short_squares",
    "together",
    "without_memory",
    "zero_examples",
]

BLOCK = 4096  # squares in one chain, see clip.NORM_ERROR
_FULL = (torch.float32, torch.float64, torch.complex64, torch.complex128)


class Form(ABC):
    """The gradients of all examples of a batch with respect to one parameter, not yet summed."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """(B,) upper bounds on the squared norms, rounding included (see `rounding`)."""

    @abstractmethod
    def weighted_sum(self, factors: Tensor, chain: int) -> Tensor:
        """Sum over examples of factor times gradient, in the parameter's shape.

        At most `chain` examples are added in one float32 chain; 0: in float64 (see `chains`).
        """

    @abstractmethod
    def dense(self) -> Tensor:
        """(B, *shape): every per-example gradient written out."""

    def settle(self) -> None:  # noqa: B027 (by default nothing)
        """Hold less from now on, if the norms can be taken before the clip factors are known."""

    @abstractmethod
    def zero(self, examples: Tensor) -> None:
        """Make the gradients of the marked examples (B,) exactly zero, whatever they held."""


def blocked_squares(values: Tensor) -> Tensor:
    """(B,) sums of squares over all other dimensions, never lower than the clip allows for.

    A float32 chain holds at most `BLOCK` squares; longer rows are cut, and the squares of the
    parts added in float64. What underflows is made up for.
    """
    flat = values if values.dim() == 2 else values.reshape(values.shape[0], -1)
    if not flat.is_cuda:
        flat = full_precision(flat)
    length = flat.shape[1]
    if length <= BLOCK:
        return short_row_squares(flat) if by_kernel(flat) else _squares(flat)
    whole = length - length % BLOCK
    parts = _squares(flat[:, :whole].unflatten(1, (-1, BLOCK)))
    return _squares(flat[:, whole:]).add_(parts.sum(1, dtype=torch.float64))


def by_kernel(*rows: Tensor) -> bool:
    """Whether squares of these rows (B, d) come from one launch, in float32."""
    return usable(*rows) and all(r.dtype != torch.float64 and r.shape[1] <= BLOCK for r in rows)


def short_row_squares(a: Tensor, g: Tensor | None = None) -> Tensor:
    """(B,) of the rows of a, or of the products g a^T, where `by_kernel`."""
    from tightrope.train.gradients.row_kernels import row_squares

    return row_squares(a, g)


def _squares(rows: Tensor) -> Tensor:
    dtype = rows.dtype if rows.element_size() > 2 else torch.float32
    norms = torch.linalg.vector_norm(rows, dim=-1, dtype=None if dtype is rows.dtype else dtype)
    lost = rows.shape[-1] * TINY  # what the squares may lack by underflow
    return torch.addcmul(_constant((), lost, dtype, rows.device), norms, norms)


@lru_cache(maxsize=1024)
def _constant(
    shape: tuple[int, ...], value: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    return torch.full(shape, value, dtype=dtype, device=device)


def short_squares(rows: Tensor, more: float = 0.0) -> Tensor:
    """blocked_squares and `more`, inside `exact_products`: quicker for short rows on the CPU."""
    length = rows.shape[1]
    if length > BLOCK or rows.is_cuda:
        squares = blocked_squares(rows)
        return squares.add_(more) if more else squares
    start, ones = _start_and_ones(length, more, rows.dtype, rows.device)
    return torch.addmv(start, rows * rows, ones)


@lru_cache(maxsize=1024)
def _start_and_ones(
    length: int, more: float, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    start = _constant((), length * TINY + more, dtype, device)
    return start, _constant((length,), 1.0, dtype, device)


def without_memory(values: Tensor) -> Tensor:
    """An empty stand-in of the same kind; a view of no rows would hold the whole."""
    return values.new_empty((0, *values.shape[1:]))


def scale_examples(values: Tensor, factors: Tensor) -> Tensor:
    """values[i] * factors[i]."""
    return values * factors.view(-1, *(1,) * (values.dim() - 1))


def zero_examples(values: Tensor, examples: Tensor) -> Tensor:
    """values with the marked examples replaced by zeros (0 * nan would stay nan)."""
    return values.masked_fill(examples.view(-1, *(1,) * (values.dim() - 1)), 0)


@final
class Dense(Form):
    """values: (B, *shape)."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def squared_norms(self) -> Tensor:
        return blocked_squares(self.values)

    def weighted_sum(self, factors: Tensor, chain: int) -> Tensor:
        return chained_total(self.values, factors, chain)

    def dense(self) -> Tensor:
        return self.values

    def zero(self, examples: Tensor) -> None:
        self.values = zero_examples(self.values, examples)


_LARGEST_TABLE = 2**27  # entries of the scratch table of one chunk of examples


@final
class TableRows(Form):
    """ids: (B, T) rows read at each position; g: (B, T, d) their output gradients.

    A row read twice by one example has the sum of both gradients, so equal ids are merged first:
    each position writes its number into a scratch table at its id and reads back the number of the
    one that won. Nothing is sorted and the table needs no clearing.
    """

    def __init__(self, ids: Tensor, g: Tensor, rows: int, padding_idx: int | None = None) -> None:
        self.ids, self.rows = ids, rows
        # A duplicate must not be merged by its rounded value: ids stay integers throughout.
        self.g = g if padding_idx is None else g.masked_fill((ids == padding_idx)[..., None], 0)
        self._merged: Tensor | None = None

    def merged(self) -> Tensor:
        """(B, T, d) with the gradients of equal ids summed into one of their positions."""
        if self._merged is None and self.g.shape[1] == 1:
            self._merged = full_precision(self.g)
        if self._merged is None:
            batch, positions, width = self.g.shape
            offset = torch.arange(batch, device=self.ids.device)[:, None] * positions
            target = (self._representatives() + offset).view(-1)
            g = full_precision(self.g).reshape(-1, width)
            # CUDA adds in an order of its own each time, which float64 makes all but invisible.
            sum_type = torch.float64 if g.is_cuda else g.dtype
            total = torch.zeros(g.shape, dtype=sum_type, device=g.device)
            total.index_add_(0, target, g.to(sum_type))
            self._merged = total.to(g.dtype).view(batch, positions, width)
        return self._merged

    def _representatives(self) -> Tensor:
        batch, positions = self.ids.shape
        dtype = torch.int16 if positions < 2**15 else torch.int32
        numbers = torch.arange(positions, dtype=dtype, device=self.ids.device)
        chunk = max(1, _LARGEST_TABLE // max(1, self.rows))
        found = []
        for start in range(0, batch, chunk):
            ids = self.ids[start : start + chunk]
            table = torch.empty(ids.shape[0], self.rows, dtype=dtype, device=ids.device)
            table.scatter_(1, ids, numbers.expand(ids.shape))
            found.append(table.gather(1, ids))
        return torch.cat(found).long() if len(found) > 1 else found[0].long()

    def squared_norms(self) -> Tensor:
        return blocked_squares(self.merged())

    def weighted_sum(self, factors: Tensor, chain: int) -> Tensor:
        """Merged, a row of the table gets at most one summand from each example."""
        values = scale_examples(self.merged(), factors.to(self.merged().dtype))
        if len(values) <= chain:
            return self._table(values, slice(None))
        if values.is_cuda or self.rows > chain * self.ids.shape[1]:  # no table for each chain
            total = self._table(values.double(), slice(None))
        else:
            tables = (self._table(values[part], part) for part in slices(len(values), chain))
            total = sum(tables, start=torch.zeros((), dtype=torch.float64, device="cpu"))
        return total if chain == 0 else total.to(values.dtype)

    def _table(self, values: Tensor, examples: slice) -> Tensor:
        ids, width = self.ids[examples].reshape(-1), values.shape[2]
        total = torch.zeros(self.rows, width, dtype=values.dtype, device=values.device)
        values = values.reshape(-1, width)
        if values.is_cuda and values.dtype is torch.float64:  # in any order, see `merged`
            return total.index_add_(0, ids, values)
        return total.index_put_((ids,), values, accumulate=True)

    def dense(self) -> Tensor:
        g = full_precision(self.g)
        total = torch.zeros(len(g), self.rows, g.shape[2], dtype=g.dtype, device=g.device)
        return total.scatter_add_(1, self.ids[..., None].expand(g.shape), g)

    def zero(self, examples: Tensor) -> None:
        self.g = zero_examples(self.g, examples)
        if self._merged is not None:
            self._merged = zero_examples(self._merged, examples)


# Memory.

_SMALLEST = 2**16  # values; below this a fresh tensor is as fast
_LARGEST_RAISE = 2**25 - 2**16  # bytes; larger blocks change nothing in the C library


@cache
def keep_freed_memory() -> None:
    """Let the C library keep what one step has freed for the next one.

    It returns less to the system once a large block was freed (mallopt(3), M_MMAP_THRESHOLD). Once
    for all: later blocks would come from memory that is kept, and many runs would take 32 MB each.
    """
    torch.empty(_LARGEST_RAISE, dtype=torch.uint8, device="cpu")


class _Kept(threading.local):
    """Every thread has its own: what is free in one may hold another's gradients."""

    def __init__(self) -> None:
        self.free: list[Tensor] = []
        self.open: list[scratch_scope] = []


_kept = _Kept()


@final
class scratch_scope:  # noqa: N801
    """Scratch tensors taken inside a `with scratch_scope():` may be overwritten after it ends.

    A scope that an exception has left open ends with the one around it, and its tensors are not
    used again: whoever closes it later (a generator that is thrown away) takes nobody's memory.
    """

    def __init__(self) -> None:
        self.taken: list[Tensor] = []

    def __enter__(self) -> None:
        _kept.open.append(self)

    def __exit__(self, *_: object) -> None:
        if self in _kept.open:
            del _kept.open[_kept.open.index(self) :]
            _kept.free.extend(self.taken)


def scratch(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised tensor, from kept memory where a scope is open on the CPU."""
    size = prod(shape)
    if not _kept.open or device.type != "cpu" or size < _SMALLEST:
        return torch.empty(shape, dtype=dtype, device=device)
    fitting = [b for b in _kept.free if b.dtype is dtype and size <= b.numel() <= 4 * size]
    if fitting:
        buffer = min(fitting, key=Tensor.numel)
        _kept.free[:] = [b for b in _kept.free if b is not buffer]
    else:
        buffer = torch.empty(size, dtype=dtype, device=device)
    _kept.open[-1].taken.append(buffer)
    return buffer[:size].view(shape)


@lru_cache(maxsize=1024)
def evenly(count: int, most: int) -> int:
    """Examples at a time, up to `most`, so that no fewer are left for the end if that can be.

    Fewer may take another kernel, and an example should be rounded alike wherever it stands.
    """
    sizes = range(min(count, most), most // 4, -1)
    return next((size for size in sizes if count % size == 0), max(1, most))


def together(values: int, device: torch.device) -> int:
    """Examples whose gradients, of so many values each, are written out at a time."""
    return max(1, (2**28 if device.type == "cuda" else 2**22) // max(1, values))


# ---- sums over the examples of a batch -----------------------------------------------------------

# Values of the chains' results that are kept at a time: where no kernel adds them, they are copied
# to float64 first, which should stay in a processor's cache.
_ROOM, _IN_CACHE = 2**24, 2**20
_WIDENED = 2**22  # values copied to float64 at a time
_SHORT = 16  # shorter chains have more results than there are values: float64 is cheaper then


def chained_total(values: Tensor, factors: Tensor, chain: int) -> Tensor:
    """sum_i factors[i] values[i] for values (B, *shape) in any floating type."""
    flat = values if values.dim() == 2 else values.reshape(values.shape[0], -1)
    total = _total(flat, factors, chain)
    return total if values.dim() == 2 else total.view(values.shape[1:])


def _total(flat: Tensor, factors: Tensor, chain: int) -> Tensor:
    if chain == 0 or flat.dtype is torch.float64:
        return _in_parts(flat, factors)
    if usable(flat):
        from tightrope.train.gradients.row_kernels import weighted_rows

        return weighted_rows(flat, factors, chain)
    factors = factors.float()
    with exact_products():
        if len(flat) <= chain:
            return torch.mv(flat.float().t(), factors)
        if chain < _SHORT:
            return _in_parts(flat, factors).float()
        parts = [torch.mv(flat[s].float().t(), factors[s]) for s in slices(len(flat), chain)]
    return torch.stack(parts).sum(0, dtype=torch.float64).float()


def _in_parts(flat: Tensor, factors: Tensor) -> Tensor:
    """In float64, with little extra memory."""
    total = torch.zeros(flat.shape[1], dtype=torch.float64, device=flat.device)
    room = max(1, _WIDENED // max(1, flat.shape[1]))
    for s in slices(len(flat), room):
        total.addmv_(flat[s].double().t(), factors[s].double())
    return total


def chained_product(left: Tensor, right: Tensor, chain: int) -> Tensor:
    """left^T right for (B, p) and (B, d)."""
    with exact_products():
        return inside_product(left, right, chain)


def inside_product(left: Tensor, right: Tensor, chain: int) -> Tensor:
    """The same for those who are inside `exact_products` already."""
    if chain == 0 or left.dtype is torch.float64:
        return _wide_product(left, right)
    if left.shape[0] <= chain:
        return torch.mm(left.t(), right)
    if chain < _SHORT:
        return _wide_product(left, right).float()
    return _blocks(left, right, chain).float()


def _wide_product(left: Tensor, right: Tensor) -> Tensor:
    """In float64, with little extra memory."""
    total = left.new_zeros(left.shape[1], right.shape[1], dtype=torch.float64)
    room = max(1, _WIDENED // max(1, left.shape[1] + right.shape[1]))
    for s in slices(len(left), room):
        total.addmm_(left[s].double().t(), right[s].double())
    return total


def _blocks(left: Tensor, right: Tensor, chain: int) -> Tensor:
    """Blocks of examples side by side, as many as there is room for, added in float64."""
    size = 1 << (chain.bit_length() - 1)  # a power of two leaves fewer rests
    most = (_ROOM if usable(left) else _IN_CACHE) // max(1, left.shape[1] * right.shape[1])
    room, count = size * max(1, most), left.shape[0]
    if count <= room and count % size == 0:
        return _added(_block_products(left, right, size))
    whole = count - count % size
    total = left.new_zeros(left.shape[1], right.shape[1], dtype=torch.float64)
    for s in slices(whole, room):
        total += _added(_block_products(left[s], right[s], size))
    if whole < count:
        total += torch.mm(left[whole:].t(), right[whole:])
    return total


def _block_products(left: Tensor, right: Tensor, size: int) -> Tensor:
    """(blocks, p, d), one float32 chain each."""
    return torch.bmm(_cut(left, size).transpose(1, 2), _cut(right, size))


def _added(results: Tensor) -> Tensor:
    """The results of chains, added in float64; a kernel needs no copy in it."""
    if not usable(results):
        return results.sum(0, dtype=torch.float64)
    from tightrope.train.gradients.row_kernels import added

    return added(results)


def _cut(rows: Tensor, size: int) -> Tensor:
    """(B, d) as (B / size, size, d); what is left over stays away."""
    return rows[: len(rows) - len(rows) % size].unflatten(0, (-1, size))


def chained_sum(values: Tensor, chain: int) -> Tensor:
    """The sum over the first dimension."""
    if chain == 0 or values.dtype is torch.float64:
        return values.sum(0, dtype=torch.float64)
    if values.shape[0] <= chain:
        return values.sum(0)
    return values.sum(0, dtype=torch.float64).float()


def sum_of_parts(parts: Iterable[tuple[slice, Tensor]], factors: Tensor, chain: int) -> Tensor:
    """The weighted total of gradients that come some examples at a time."""
    total: Tensor | None = None
    for part, gradients in parts:
        if total is not None and len(factors) <= chain and _plain(gradients):
            _add_to_chain(total, gradients, factors[part])
            continue
        one = chained_total(gradients, factors[part], chain)
        total = one if total is None else total.double().add_(one)
    assert total is not None
    return total if chain == 0 else total.to(one.dtype)


def _plain(values: Tensor) -> bool:
    return values.dtype is torch.float32 and not values.is_cuda


def _add_to_chain(total: Tensor, gradients: Tensor, factors: Tensor) -> None:
    """Go on with a float32 chain that may hold them all: a third of the memory traffic."""
    with exact_products():
        total.view(-1).addmv_(gradients.reshape(len(gradients), -1).t(), factors.float())


def slices(length: int, size: int) -> Iterator[slice]:
    """0 to length in steps of `size`."""
    for start in range(0, length, size):
        yield slice(start, start + size)
