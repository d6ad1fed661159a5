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
from torch.nn import functional

from tightrope.train.gradients.rounding import TINY, exact_products, full_precision, usable

BLOCK = 4096  # squares in one chain, see clip.NORM_ERROR


class Form(ABC):
    """The gradients of all examples of a batch with respect to one parameter, not yet summed."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """(B,) upper bounds on the squared norms, rounding included (see `rounding`)."""

    @abstractmethod
    def weighted_sum(self, factors: Tensor, chain: int) -> Tensor:
        """Sum over examples of factor times gradient, in the parameter's shape.

        At most `chain` examples are added in one float32 chain; 0: in float64.
        """

    @abstractmethod
    def dense(self) -> Tensor:
        """(B, *shape): every per-example gradient written out."""

    def settle(self) -> None:  # noqa: B027 (by default nothing)
        """Hold less from now on, if the norms can be taken before the clip factors are known."""

    @abstractmethod
    def zero(self, examples: Tensor) -> None:
        """Make the gradients of the marked examples (B,) exactly zero, whatever was there."""


def blocked_squares(values: Tensor, more: float = 0.0) -> Tensor:
    """(B,) sums of squares over all other dimensions, and `more`; never lower than the clip allows.

    A float32 chain holds at most `BLOCK` squares; longer rows are cut, and the squares of the
    parts added in float64. What underflows is made up for.
    """
    flat = values if values.dim() == 2 else values.reshape(values.shape[0], -1)
    if not flat.is_cuda:
        flat = full_precision(flat)
    length = flat.shape[1]
    if length > BLOCK:
        whole = length - length % BLOCK
        parts = _squares(flat[:, :whole].unflatten(1, (-1, BLOCK)), 0.0)
        return _squares(flat[:, whole:], more).add_(parts.sum(1, dtype=torch.float64))
    if by_kernel(flat) and not more:
        from tightrope.train.gradients.row_kernels import row_squares

        return row_squares(flat)
    return _squares(flat, more)


def by_kernel(*rows: Tensor) -> bool:
    """Whether squares of these rows (B, d) come from one launch, in float32."""
    return usable(*rows) and all(r.dtype != torch.float64 and r.shape[1] <= BLOCK for r in rows)


def _squares(rows: Tensor, more: float) -> Tensor:
    half = rows.element_size() == 2
    norms = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float32 if half else None)
    lost = rows.shape[-1] * TINY  # what the squares may lack by underflow
    return torch.addcmul(_constant((), lost + more, norms.dtype, norms.device), norms, norms)


def short_squares(rows: Tensor, more: float) -> Tensor:
    """`blocked_squares` inside `exact_products`: quicker for short rows on the CPU."""
    length = rows.shape[1]
    if length > BLOCK:
        return blocked_squares(rows, more)
    start = _constant((), length * TINY + more, rows.dtype, rows.device)
    return torch.addmv(start, rows * rows, _constant((length,), 1.0, rows.dtype, rows.device))


@lru_cache(maxsize=1024)
def _constant(
    shape: tuple[int, ...], value: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    return torch.full(shape, value, dtype=dtype, device=device)


def without_memory(values: Tensor) -> Tensor:
    """An empty stand-in of the same kind; a view of no rows would hold the whole."""
    return values.new_empty((0, *values.shape[1:]))


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
        if self._merged is None:
            batch, positions, width = self.g.shape
            g = full_precision(self.g)
            if positions > 1:
                offset = torch.arange(batch, device=g.device)[:, None] * positions
                target = (self._representatives() + offset).view(-1)
                # CUDA adds in an order of its own each time, which float64 makes all but invisible.
                sum_type = torch.float64 if g.is_cuda else g.dtype
                total = torch.zeros(batch * positions, width, dtype=sum_type, device=g.device)
                total.index_add_(0, target, g.reshape(-1, width).to(sum_type))
                g = total.to(g.dtype).view(batch, positions, width)
            self._merged = g
        return self._merged

    def _representatives(self) -> Tensor:
        batch, positions = self.ids.shape
        dtype = torch.int16 if positions < 2**15 else torch.int32
        numbers = torch.arange(positions, dtype=dtype, device=self.ids.device)
        found = []
        for part in slices(batch, max(1, _LARGEST_TABLE // max(1, self.rows))):
            ids = self.ids[part]
            table = torch.empty(len(ids), self.rows, dtype=dtype, device=ids.device)
            table.scatter_(1, ids, numbers.expand(ids.shape))
            found.append(table.gather(1, ids))
        return torch.cat(found).long()

    def squared_norms(self) -> Tensor:
        return blocked_squares(self.merged())

    def weighted_sum(self, factors: Tensor, chain: int) -> Tensor:
        """Merged, a row of the table gets at most one summand from each example."""
        values = self.merged() * factors.to(self.merged().dtype)[:, None, None]
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
    used again: whoever closes it later (a generator that is thrown away) takes no one's memory.
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


def slices(length: int, size: int) -> Iterator[slice]:
    """0 to length in steps of `size`."""
    for start in range(0, length, size):
        yield slice(start, start + size)


# Sums over the examples of a batch.

# Values of the chains' results that are kept at a time: where no kernel adds them, they are copied
# to float64 first, which should stay in a processor's cache.
_ROOM, _IN_CACHE = 2**24, 2**20
_WIDENED = 2**22  # values copied to float64 at a time
_SHORT = 16  # shorter chains have more results than there are values: float64 is cheaper then


def chained_total(values: Tensor, factors: Tensor, chain: int) -> Tensor:
    """sum_i factors[i] values[i] for values (B, *shape) in any floating type."""
    flat = values.reshape(values.shape[0], -1)
    if chain and flat.dtype is not torch.float64 and usable(flat):
        from tightrope.train.gradients.row_kernels import weighted_rows

        total = weighted_rows(flat, factors, chain)
    else:
        wide = torch.promote_types(flat.dtype, torch.float32) if chain else torch.float64
        total = chained_product(factors[:, None].to(wide), flat, chain)
    return total.view(values.shape[1:])


def chained_product(left: Tensor, right: Tensor, chain: int) -> Tensor:
    """left^T right for (B, p) and (B, d)."""
    with exact_products():
        return inside_product(left, right, chain)


def inside_product(left: Tensor, right: Tensor, chain: int) -> Tensor:
    """The same for those who are inside `exact_products` already."""
    wide = chain == 0 or left.dtype is torch.float64
    if not wide and len(left) <= chain:
        return torch.mm(full_precision(left).t(), full_precision(right))
    shape = left.shape[1], right.shape[1]
    if wide or chain < _SHORT:
        total = torch.zeros(shape, dtype=torch.float64, device=left.device)
        for s in slices(len(left), max(1, _WIDENED // max(1, sum(shape)))):
            total.addmm_(left[s].double().t(), right[s].double())
        return total if wide else total.float()
    size = 1 << (chain.bit_length() - 1)  # a power of two, as batches often are
    left, right = _blocks(full_precision(left), size), _blocks(full_precision(right), size)
    room = max(1, (_ROOM if usable(left) else _IN_CACHE) // max(1, prod(shape)))
    if len(left) <= room:  # one float32 chain for each block
        return _added(torch.bmm(left.transpose(1, 2), right)).float()
    total = torch.zeros(shape, dtype=torch.float64, device=left.device)
    for s in slices(len(left), room):
        total += _added(torch.bmm(left[s].transpose(1, 2), right[s]))
    return total.float()


def _blocks(rows: Tensor, size: int) -> Tensor:
    """(B, d) as (blocks, size, d), filled up with zeros."""
    missing = -len(rows) % size
    whole = functional.pad(rows, (0, 0, 0, missing)) if missing else rows
    return whole.unflatten(0, (-1, size))


def _added(results: Tensor) -> Tensor:
    """The results of chains, added in float64; a kernel needs no copy in it."""
    if not usable(results):
        return results.sum(0, dtype=torch.float64)
    from tightrope.train.gradients.row_kernels import added

    return added(results)


def sum_of_parts(parts: Iterable[tuple[slice, Tensor]], factors: Tensor, chain: int) -> Tensor:
    """The weighted total of gradients that come some examples at a time."""
    total: Tensor | None = None
    for part, gradients in parts:
        plain = gradients.dtype is torch.float32 and not gradients.is_cuda
        if total is not None and len(factors) <= chain and plain:
            # One float32 chain may hold them all: a third of the memory traffic.
            with exact_products():
                rows = gradients.reshape(len(gradients), -1)
                total.view(-1).addmv_(rows.t(), factors[part].float())
            continue
        one = chained_total(gradients, factors[part], chain)
        total = one if total is None else total.double().add_(one)
    assert total is not None
    return total if chain == 0 else total.to(one.dtype)
