"""Operators that move entries: reshapes, permutations, parts, copies, joins.

No numbers are computed here. A rule says where the rows are afterwards, and refuses what pairs an
example with another one or picks examples by their place in the batch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tightrope.train.program.labels import (
    PUBLIC,
    Index,
    Label,
    Mixes,
    Rows,
    Unknown,
    reshaped,
    without,
)
from tightrope.train.program.rules.table import along, never, rule

if TYPE_CHECKING:
    from tightrope.train.program.proof import Call

_BY_PLACE = "Treat all examples alike: an example may not be picked by its place in the batch."


@rule(
    "view.default reshape.default _unsafe_view flatten.using_ints unflatten.int squeeze.dim "
    "squeeze.dims squeeze.default unsqueeze view_copy.default _reshape_copy "
    "squeeze_copy.dim squeeze_copy.dims unsqueeze_copy",
    keeps_index=True,
)
def reshape(c: Call) -> Label:
    """Another shape with all entries in the same order."""
    label, old, new = c.exact(c["self"]), c.sizes(c["self"]), c.result_sizes
    for name in ("size", "sizes", "shape"):
        c.numbers(c.get(name))
    for name in ("dim", "start_dim", "end_dim"):  # all entries keep their order all the same
        c.public(c.get(name))
    if isinstance(label, Rows):
        return reshaped(label, c.batch, old, new)
    if isinstance(label, Index):
        rows = reshaped(Rows(label.dim), c.batch, old, new)
        return Index(rows.dim) if (rows.outer, rows.inner) == (1, 1) else PUBLIC
    raise Unknown("a reshape of a value that has no rows")


@rule("permute transpose.int t permute_copy transpose_copy.int t_copy", keeps_index=True)
def permute(c: Call) -> Label:
    label, rank = c.exact(c["self"]), c.rank(c["self"])
    order = list(range(rank))
    if "dims" in c:
        order = [c.dim(c["self"], d) for d in c["dims"]]
    elif "dim0" in c:
        a, b = c.dim(c["self"], c["dim0"]), c.dim(c["self"], c["dim1"])
        order[a], order[b] = order[b], order[a]
    else:
        order.reverse()
    if isinstance(label, Rows | Index):
        return label.at(order.index(label.dim))  # where the new order has the old dimension
    raise Unknown("a permutation of something that is no rows")


@rule("expand expand_copy", makes=True)
def expand(c: Call) -> Label:
    """Copies along a dimension. All are equal, so they may as well be one for each example."""
    x, size = c["self"], c["size"]
    c.public(c["implicit"])
    label, old, new = c.exact(x), c.sizes(x), c.result_sizes
    c.numbers([n for n in size if not _is_left_out(n)])
    lead = len(new) - len(old)
    if isinstance(label, Rows | Index):
        return label.at(label.dim + lead)
    for dim, n in enumerate(new):
        copies = (dim < lead or old[dim - lead] == 1) and not _is_left_out(size[dim])
        if copies and n % c.batch == 0 and c.follows_batch(size[dim]):
            return Rows(dim, 1, n // c.batch)
    return PUBLIC


def _is_left_out(size: object) -> bool:
    return isinstance(size, int) and size < 0


@rule("repeat", makes=True)
def repeat(c: Call) -> Label:
    """The whole tensor again and again along each dimension: entry j is entry j % n."""
    x, label = c["self"], c.exact(c["self"])
    times = c.numbers(c["repeats"])
    lead, old = len(times) - c.rank(x), c.sizes(x)
    if isinstance(label, Rows):
        dim = label.dim + lead
        return Rows(dim, label.outer * times[dim], label.inner)
    if isinstance(label, Index):
        return label.at(label.dim + lead) if times[label.dim + lead] == 1 else PUBLIC
    for dim, n in enumerate(c["repeats"]):
        if c.follows_batch(n) and times[dim] % c.batch == 0:
            # One whole copy for each example.
            return Rows(dim, times[dim] // c.batch, old[dim - lead] if dim >= lead else 1)
    return PUBLIC


@rule("repeat_interleave.self_int")
def repeat_interleave(c: Call) -> Label:
    """Each entry some times in a row, along a dimension or along all entries in their order."""
    x, times = c["self"], c.number(c["repeats"])
    c.numbers(c["output_size"])
    label = c.rows(x)
    if c["dim"] is None:
        old = c.sizes(x)
        flat = reshaped(label, c.batch, old, [math.prod(old)])
        return Rows(0, flat.outer, flat.inner * times)
    here = c.dim(x, c["dim"]) == label.dim
    return Rows(label.dim, label.outer, label.inner * times if here else label.inner)


# Parts.


# One entry along a dimension, which goes; one tensor for each entry.
along("select.int select_copy.int unbind.int unbind_copy.int", "dim", gone=True, do=_BY_PLACE)
# Amounts come in pairs (before, after), the last dimension first. A negative amount cuts; -1 and 1
# together shift the rows.
along(
    "constant_pad_nd pad",
    lambda c, x, rank: [rank - 1 - k // 2 for k, n in enumerate(c.numbers(c["pad"])) if n],
    sizes="pad",
    do=_BY_PLACE,
)
# Entries with two equal indices; both dimensions go and a new one comes last.
along("diagonal diagonal_copy", lambda c, x, rank: c.dims(x, [c["dim1"], c["dim2"]]), gone=True)


@rule("slice.Tensor slice_copy.Tensor", keeps_index=True)
def slice_(c: Call) -> Label:
    """A range along a dimension."""
    label, dim = c.exact(c["self"]), c.dim(c["self"], c["dim"])
    for name in ("start", "end", "step"):
        c.numbers(c[name])
    if not isinstance(label, Rows | Index):
        raise Unknown("a range of something that is no rows")
    # The range has all entries if and only if it is as long as the dimension (steps are positive).
    if dim == label.dim and c.result_sizes != c.sizes(c["self"]):
        if isinstance(label, Index):
            return PUBLIC
        raise Mixes("some examples are cut out by their place in the batch", _BY_PLACE)
    return label


@rule(
    "split.Tensor split_with_sizes split.sizes chunk unsafe_split.Tensor unsafe_chunk "
    "unsafe_split_with_sizes tensor_split.sections tensor_split.indices split_copy.Tensor "
    "split_with_sizes_copy"
)
def split(c: Call) -> Label:
    """Ranges along a dimension; one range with everything is no split."""
    for name in ("split_size", "split_sizes", "chunks", "sections", "indices"):
        c.numbers(c.get(name))
    label = c.rows(c["self"])
    whole = len(c.value) == 1 and c.result_sizes == c.sizes(c["self"])
    if c.dim(c["self"], c["dim"]) == label.dim and not whole:
        raise Mixes("the batch is split into parts by the place of the examples", _BY_PLACE)
    return c.each(label)


@rule("diag_embed")
def diag_embed(c: Call) -> Label:
    """The last dimension becomes the diagonal of two new ones, placed at dim1 and dim2."""
    c.public(c["offset"])
    rank = c.rank(c["self"]) + 1
    label = c.untouched(c["self"], [rank - 2])
    pair = {c["dim1"] % rank, c["dim2"] % rank}
    free = [d for d in range(rank) if d not in pair]  # the other dimensions, in their order
    return label.at(free[label.dim])


@rule("cat concat concatenate")
def cat(c: Call) -> Label:
    """Tensors one after the other along a dimension. Empty ones add nothing."""
    empty = [t for t in c["tensors"] if 0 in c.sizes(t)]
    c.considered.update(empty)
    tensors = [t for t in c["tensors"] if t not in empty]
    label = c.broadcast(*tensors, what="rows")
    joined = isinstance(label, Rows) and label.dim == c["dim"] % len(c.result_sizes)
    if joined and len(tensors) > 1:
        raise Mixes("rows are joined along the dimension that holds the examples", _BY_PLACE)
    return label


@rule("stack")
def stack(c: Call) -> Label:
    """Tensors of one shape, along a new dimension."""
    tensors = c["tensors"]
    rank = c.rank(tensors[0])
    label = c.broadcast(*tensors, rank=rank, what="rows")
    if not isinstance(label, Rows):
        return label
    return label.at(label.dim + (c["dim"] % (rank + 1) <= label.dim))


@rule("slice_scatter select_scatter diagonal_scatter")
def write_part(c: Call) -> Label:
    """A part of the first tensor is replaced by the second: `select`, `slice` backwards."""
    x, src = c["self"], c["src"]
    label, other = c.label(x), c.label(src)
    for name in ("start", "end", "step", "index", "offset"):
        c.numbers(c.get(name))
    pair = [c["dim1"], c["dim2"]] if c.name == "diagonal_scatter" else [c["dim"]]
    touched = c.dims(x, pair)
    if not isinstance(label, Rows):
        # Public numbers, the same all along the dimension where the rows of the part are.
        raise Mixes(
            "rows are written into public numbers, which may differ from row to row",
            "Make the tensor that is written to with x.new_zeros(x.shape[0], ...).",
        )
    if label.dim in touched and c.sizes(src) != c.sizes(x):
        raise Mixes("some rows are overwritten by their place in the batch", _BY_PLACE)
    wanted = without(label, touched, keep=c.name == "slice_scatter")
    if isinstance(other, Rows):
        if other != wanted:
            raise Mixes("rows of two examples meet: the examples lie in different places")
    elif other != PUBLIC or c.sizes(src)[wanted.dim] != 1:
        raise Mixes("public numbers that differ from row to row meet the rows", _BY_PLACE)
    return label


never(
    "as_strided as_strided_copy as_strided_scatter _reshape_alias set resize resize_as",
    "it reads memory by numbers of its own",
    "Use slicing, unfold, transpose or expand instead.",
)
