"""Columns cut into bins by public facts alone, and whole-number histograms over the bins.

A column is described before a private row is read: numbers between public bounds (or with public
edges), or a list of categories. The bin of a value depends on that value and on the description.
Nothing is refused and nothing is read off the rows: a number beyond the bounds is in the outermost
bin, and what is missing or not on the list is in bin 0, which every column has.

Cells of numbers can be joined to bins of about equal weight; that uses noisy counts that were
released before, so it is post-processing.

Histograms are sums of whole numbers in 64 bits, hence exact in any order and any split. A row is in
one bin of each column. So a row that is added or removed moves a histogram by the length of its own
entry, and one that is replaced by at most twice the largest length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tightrope.errors import InvalidInput
from tightrope.validate import FloatArray

Codes = NDArray[np.uint16]
Whole = NDArray[np.int64]

CELLS = 256  # of equal width, between the bounds of a column
MISSING = 0  # the bin of what is missing or unknown
_MOST = 60_000  # bins of one column
_PIECE = 1 << 22  # rows added as floats: whole numbers below 2^31 add up exactly to below 2^53


@final
@dataclass(frozen=True)
class Numbers:
    """Numbers between the outer edges; the cell right of edge i has number i + 1.

    joined: whether the edges may be thinned out by noisy counts.
    """

    edges: tuple[float, ...]
    joined: bool = True

    @property
    def bins(self) -> int:
        return len(self.edges)  # one cell less, and the bin of missing values

    def codes(self, values: Any) -> Codes:
        """The bin of each value."""
        given, inner = _as_numbers(values), np.asarray(self.edges[1:-1])
        found = 1 + np.searchsorted(inner, given, side="right")
        return np.where(np.isnan(given), MISSING, found).astype(np.uint16)

    def thinned(self, counts: FloatArray, most: int, least: float) -> Numbers:
        """At most `most` bins of about equal noisy weight, and of at least `least` each."""
        if not self.joined:
            return self
        cells = np.maximum(counts[1:], 0.0)
        kept, weight, left = [self.edges[0]], 0.0, float(cells.sum())
        for cell, edge in zip(cells[:-1], self.edges[1:-1], strict=True):
            weight += float(cell)
            bins_left = most - len(kept)
            enough = max(least, (left / (bins_left + 1)))
            if bins_left > 0 and weight >= enough and left - weight >= least:
                kept.append(edge)
                left, weight = left - weight, 0.0
        return replace(self, edges=(*kept, self.edges[-1]))


@final
@dataclass(frozen=True)
class Categories:
    """Public categories, without an order; category i has bin i + 1."""

    values: tuple[Any, ...]

    @property
    def bins(self) -> int:
        return len(self.values) + 1

    def codes(self, values: Any) -> Codes:
        """The bin of each value."""
        known = {value: number for number, value in enumerate(self.values, start=1)}
        return np.fromiter((_known(known, value) for value in values), np.uint16, len(values))

    def thinned(self, counts: FloatArray, most: int, least: float) -> Categories:
        """The same: categories stay as they were declared."""
        return self


Column = Numbers | Categories


def numbers(fact: object, name: str) -> Numbers:
    """A column of numbers: its public bounds (low, high), or more than two edges of its bins."""
    try:
        edges = np.asarray(fact, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        edges = np.empty(0)
    right = edges.ndim == 1 and 2 <= len(edges) <= _MOST and bool(np.isfinite(edges).all())
    if not right or not (np.diff(edges) > 0.0).all() or not np.isfinite(edges[-1] - edges[0]):
        raise InvalidInput(
            f"{name} needs public bounds (low, high) that are finite and increase, or the edges "
            f"of its bins, from 2 to {_MOST:,} of them; got {fact!r:.100}."
        )
    if len(edges) > 2:
        return Numbers(tuple(edges.tolist()), joined=False)
    cells = np.unique(np.linspace(edges[0], edges[1], CELLS + 1))
    return Numbers(tuple(cells.tolist()))


def categories(fact: object, name: str) -> Categories:
    """A column of categories: all of them, known without the data."""
    values = list(fact) if isinstance(fact, Iterable) and not isinstance(fact, str | bytes) else []
    plain = tuple(value.item() if isinstance(value, np.generic) else value for value in values)
    try:
        different = len(set(plain))
    except TypeError:
        different = -1
    if not 1 <= len(plain) <= _MOST or different != len(plain):
        raise InvalidInput(
            f"{name} needs a list of its categories, from 1 to {_MOST:,} different numbers or "
            f"texts; got {fact!r:.100}."
        )
    return Categories(plain)


def _as_numbers(values: Any) -> FloatArray:
    """Numbers, NaN for what is none: a text among numbers must not stop a fit."""
    array = np.asarray(values)
    if array.dtype.kind in "fiub":
        return array.astype(np.float64)
    return np.fromiter((_number(value) for value in array), np.float64, len(array))


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _known(known: dict[Any, int], value: Any) -> int:
    try:
        return known.get(value, MISSING)
    except TypeError:  # a list or another value that cannot be a category
        return MISSING


def histogram(codes: Codes, bins: int, entries: Whole | None = None) -> Whole:
    """For each bin the sum of the entries (of 1, if none) of its rows; one column an output.

    entries: (rows, outputs), each below 2^31 in size. Exact.
    """
    columns = 1 if entries is None else entries.shape[1]
    total = np.zeros((bins, columns), dtype=np.int64)
    for at in range(0, len(codes), _PIECE):
        piece = codes[at : at + _PIECE]
        for output in range(columns):
            part = None if entries is None else entries[at : at + _PIECE, output]
            total[:, output] += np.bincount(piece, part, minlength=bins).astype(np.int64)
    return total
