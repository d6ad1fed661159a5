"""Operators that pick or write entries by whole numbers: tables, gather, scatter, indexing.

The numbers may come from an example; then what is picked may only be public or the example's own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from tightrope.train.program.labels import PUBLIC, Index, Label, Mixes, Rows, Unknown, broadcast
from tightrope.train.program.rules.table import rule

if TYPE_CHECKING:
    from tightrope.train.program.proof import Call

_OTHERS = "An example may pick from public tables and from its own values only."
_DIFFERENT_PLACES = "rows of two examples meet: the examples lie in different places"


@rule("embedding")
def embedding(c: Call) -> Label:
    """weight[indices]: one row of the table for each number; the width comes last."""
    c.public_but("indices", "weight")
    if c["scale_grad_by_freq"]:
        raise Mixes(
            "gradients are scaled by how often the batch has a word",
            "Set scale_grad_by_freq=False.",
        )
    numbers, table = c.exact(c["indices"]), c.label(c["weight"])
    if isinstance(numbers, Index) and table == Rows(0):
        if c["padding_idx"] != -1:
            raise Mixes(
                "the example at one place of the batch has no gradient (padding_idx)",
                "Each example reads its own row here: leave padding_idx out.",
            )
        return Rows(numbers.dim)  # each example reads its own row
    if table != PUBLIC:
        raise Mixes("an example picks from a table of other examples", _OTHERS)
    return c.rows(c["indices"])


@rule("one_hot")
def one_hot(c: Call) -> Label:
    """A new last dimension."""
    if c.number(c["num_classes"]) < 0:
        raise Mixes("the number of classes is read from the examples", "Pass num_classes.")
    return c.rows(c["self"])


@rule("gather")
def gather(c: Call) -> Label:
    """out[i][j][k] = self[i][index[i][j][k]][k] for dim = 1.

    The index may be shorter than self: entries 0 .. n-1 are used then. Along the rows both have
    full length, since both are labelled.
    """
    x, index = c["self"], c["index"]
    c.public(c["sparse_grad"])
    dim, label = c.dim(x, c["dim"]), c.label(index)
    if c.label(x) == PUBLIC and isinstance(label, Rows) and label.dim == dim:
        # Read from public numbers, at their own public places in the other dimensions.
        return label
    return _at_own_place(c, dim, x, index)


def _at_own_place(c: Call, dim: int, *tensors: Any) -> Label:
    """For gather and scatter: all tensors have their rows in one place, and not in `dim`."""
    labels = {c.label(t) for t in tensors}
    found = [label for label in labels if isinstance(label, Rows)]
    if len(found) != 1:
        raise Mixes(_DIFFERENT_PLACES, _OTHERS)
    if found[0].dim == dim:
        raise Mixes("an example picks from other examples, or writes into them", _OTHERS)
    if PUBLIC in labels:
        # Row b is read at place b of this tensor. Only equal numbers do not follow the place.
        raise Mixes(
            "public numbers that may differ from row to row meet the rows",
            "Expand them with .expand(x.shape[0], ...) from one row.",
        )
    return found[0]


@rule(
    "scatter.src scatter.value scatter_add scatter_reduce.two scatter.reduce scatter.value_reduce"
)
def scatter(c: Call) -> Label:
    """self[i][index[i][j][k]][k] = src[i][j][k] for dim = 1."""
    x, others = c["self"], [c["index"], *([c["src"]] if "src" in c else [])]
    c.public(c.get("reduce"), c.get("include_self"), c.get("value"))
    return _at_own_place(c, c.dim(x, c["dim"]), x, *others)


@rule("index_select")
def index_select(c: Call) -> Label:
    """Entries along one dimension by a list of numbers."""
    x, dim = c["self"], c.dim(c["self"], c["dim"])
    of_x, of_index = c.label(x), c.exact(c["index"])
    if of_x == PUBLIC and isinstance(of_index, Rows):
        return of_index.at(dim)
    if isinstance(of_x, Rows) and not isinstance(of_index, Rows) and of_x.dim != dim:
        return of_x
    if of_x == Rows(dim) and isinstance(of_index, Index):
        return of_x  # all rows in their order
    raise Mixes("examples are picked by number", _OTHERS)


@rule("index_add index_copy index_fill.int_Scalar index_reduce")
def index_write(c: Call) -> Label:
    """Slices along one dimension are replaced, or added to, at a list of numbers."""
    x, dim = c["self"], c.dim(c["self"], c["dim"])
    label = c.rows(x, "rows are written into public numbers")
    c.public_but("self", "source")
    if label.dim == dim:
        raise Mixes("examples are written to by number", _OTHERS)
    if "source" in c and c.label(c["source"]) != label:
        raise Mixes(_DIFFERENT_PLACES)
    return label


@rule("index.Tensor _unsafe_index.Tensor")
def index(c: Call) -> Label:
    return _read(c)[0]


def _read(c: Call) -> tuple[Label, int]:
    """The label of x[i, j, :, k], and its number of dimensions.

    The numbers are broadcast together; what they give stands in their place. If they are separated
    by a full slice, it stands in front instead. Each number picks along one dimension of x; the
    other dimensions are kept.
    """
    x, label = c["self"], c.label(c["self"])
    picked = {d: n for d, n in enumerate(c["indices"]) if n is not None}
    if any(_is_mask(n) for n in picked.values()):
        raise Mixes(
            "a mask picks as many entries as the data say",
            "Multiply by the mask, or use torch.where, and sum over each example.",
        )
    rank = max(c.rank(n) for n in picked.values())
    together = max(picked) - min(picked) == len(picked) - 1
    start, own = min(picked) if together else 0, False
    parts: list[tuple[Label, list[int]]] = []
    for d, n in picked.items():
        of_n = c.exact(n)
        if isinstance(of_n, Index) and label == Rows(d):
            of_n, own = Rows(of_n.dim), True  # x[arange(B), ...]: example b reads row b
        elif isinstance(label, Rows) and label.dim == d:
            raise Mixes("examples are picked by number", _OTHERS)
        parts.append((of_n, c.sizes(n)))
    of_index, result = broadcast(parts, rank, "numbers"), rank + c.rank(x) - len(picked)
    if isinstance(of_index, Rows):
        if isinstance(label, Rows) and not own:
            raise Mixes("an example picks from other examples, or writes into them", _OTHERS)
        return of_index.at(start + of_index.dim), result
    if not isinstance(label, Rows):
        return PUBLIC, result
    kept_before = sum(d not in picked for d in range(label.dim))
    return label.at(kept_before + (rank if start <= kept_before else 0)), result


@rule("index_put _unsafe_index_put _index_put_impl")
def index_put(c: Call) -> Label:
    """x[i, j, :, k] = values, or += values: the places are those that x[i, j, :, k] would read."""
    x, values = c["self"], c["values"]
    c.public(c["accumulate"])
    label = c.rows(x, "rows are written into public numbers")
    masks = [(d, n) for d, n in enumerate(c["indices"]) if n is not None and _is_mask(n)]
    if masks:
        return _fill_by_mask(c, label, *masks[0])
    # The values are broadcast to what would be read, from the right.
    place, rank = _read(c)
    assert isinstance(place, Rows)
    at, of_values = place.dim - (rank - c.rank(values)), c.label(values)
    if of_values == PUBLIC:
        if at >= 0 and c.sizes(values)[at] != 1:
            raise Mixes("public numbers that differ from row to row meet the rows")
    elif of_values != place.at(at):
        raise Mixes(_DIFFERENT_PLACES)
    return label


def _is_mask(n: Any) -> bool:
    return n.meta["val"].dtype in (torch.bool, torch.uint8)


def _fill_by_mask(c: Call, label: Rows, start: int, mask: Any) -> Label:
    """x[:, mask] = one number: entry by entry. The mask lies along dimensions start, start + 1, ...

    Several values would be dealt out to the entries of all examples in their order.
    """
    if sum(n is not None for n in c["indices"]) != 1 or math.prod(c.sizes(c["values"])) != 1:
        raise Mixes(
            "values are dealt out to the entries that a mask picks, of all examples in turn",
            "Use torch.where(mask, values, x).",
        )
    c.public(c["values"])
    of_mask, inside = c.label(mask), label.dim - start
    if isinstance(of_mask, Rows):
        if of_mask != label.at(inside):
            raise Mixes(_DIFFERENT_PLACES)
    elif of_mask != PUBLIC or 0 <= inside < c.rank(mask):
        raise Mixes("a public mask that differs from row to row meets the rows")
    return label


@rule("searchsorted.Tensor searchsorted.Scalar")
def search(c: Call) -> Label:
    """Places of numbers in sorted edges: one list for all, or one for each row of numbers."""
    edges, numbers = c["sorted_sequence"], c["self"]
    c.public_but("sorted_sequence", "self")
    of_edges = c.label(edges)
    if c["sorter"] is not None:
        # As many numbers as edges: for each row others, by its place.
        raise Unknown("edges in an order of their own", "Sort them first, with gather.")
    one_list = c.rank(edges) == 1
    if one_list and of_edges != PUBLIC:
        raise Mixes("numbers are looked up among those of other examples", _OTHERS)
    label = c.rows(numbers)
    # Edges and numbers agree in all dimensions but the last.
    if not one_list and (of_edges != label or label.dim == c.rank(numbers) - 1):
        raise Mixes("numbers are looked up among those of other examples", _OTHERS)
    return label
