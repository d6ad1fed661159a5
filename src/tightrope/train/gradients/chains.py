"""Sums over the examples of a batch: short float32 chains, their results added in float64.

`chain` is the number of examples in one float32 chain (`rounding.longest_chain`); 0 means float64
throughout. Where a batch fits into one chain these are the plain products.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from tightrope.train.gradients.rounding import exact_products, usable

__all__ = [
    "chained_product",
    "chained_sum",
    "chained_total",
    "inside_product",
    "slices",
    "sum_of_parts",
]

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
