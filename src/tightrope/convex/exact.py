"""Sums and scores whose rounding is nothing, or bounded whatever the order.

`row_sums` adds along rows by elementwise operations in a fixed tree, so what comes of a row depends
on that row alone: elementwise operations of IEEE numbers have one right result. Sparse rows SciPy
goes through from left to right, each by itself.

`scores` multiplies dense rows whose entries are whole numbers (of 2^-GRID) by weights split into
parts of whole numbers each. By Cauchy and Schwarz any part of such a sum, added in any order, stays
below 2^53, where floats hold whole numbers exactly: nothing is rounded, so nothing depends on
blocks, threads, the library of matrix products or the place of a row. The parts carry the weights
to sqrt(d) 2^-53 of their norm. It takes several products where a plain one takes one, so it serves
only weights that are too long for the bound of the plain one (see `arithmetic`).

`CarriedTotal` adds blocks with their rounding errors carried along (Knuth's two-sum): its error is
one unit in the last place of the result and k^2 2^-106 of the sum of the blocks' sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias, final

import numpy as np
import scipy.sparse as sp

from tightrope.errors import InvalidInput
from tightrope.validate import FloatArray

Features: TypeAlias = "FloatArray | sp.csr_array"  # one row for each record

GRID = 34  # rows are whole multiples of 2^-34
_CACHED = 1 << 16  # numbers of which a sum along rows makes a copy
_LARGEST_EXPONENT = 500
_HUGE = float(np.finfo(np.float64).max)


def row_sums(products: FloatArray) -> FloatArray:
    """Sums of columns (one for each row), in the same tree for all; overwrites its argument."""
    width = len(products)
    while width > 1:
        half = width // 2
        products[:half] += products[width - half : width]
        width -= half
    return products[0].copy() if len(products) else np.zeros(products.shape[1])


def _by_rows(features: Features, product: Callable[[Any], FloatArray]) -> FloatArray:
    """Sums of `product` along rows, a few rows at a time: they lie side by side in the cache."""
    dense = np.asarray(features)
    step = max(1, _CACHED // max(dense.shape[1], 1))
    parts = [row_sums(product(dense[i : i + step].T)) for i in range(0, len(dense), step)]
    return np.concatenate(parts) if parts else np.empty(0)


def row_dots(features: Features, vector: FloatArray) -> FloatArray:
    """<row, vector> for each row."""
    if sp.issparse(features):
        return np.asarray(wide(features) @ vector)
    column = vector[:, None]
    return _by_rows(features, lambda rows: np.multiply(rows, column, order="C", dtype=np.float64))


def row_squares(features: Features) -> FloatArray:
    """Squared norm of each row."""
    if not sp.issparse(features):
        return _by_rows(features, lambda rows: np.square(rows, order="C", dtype=np.float64))
    found = wide(features)
    squares = sp.csr_array((found.data**2, found.indices, found.indptr), shape=found.shape)
    return np.asarray(squares @ np.ones(features.shape[1]))


def canonical(features: Any) -> Any:
    """Sparse rows in order, with what they give twice added up: it is one entry of the row."""
    if not sp.issparse(features):
        return features
    rows = features.tocsr()
    if not rows.has_canonical_format:
        check_finite(rows)
        rows = rows.astype(np.float64, copy=True)
        rows.sum_duplicates()
        rows.data = np.nan_to_num(rows.data, nan=_HUGE)  # what left the floats is too long a row
    return rows


def check_finite(features: Features) -> None:
    """Refuses NaN and infinities without telling where or what they are."""
    if not np.isfinite(features.data if sp.issparse(features) else features).all():
        raise InvalidInput(
            "The features contain NaN or infinity, so their rows have no norm. Impute or drop such "
            "rows by a rule that does not depend on other rows."
        )


def wide(features: Features) -> Any:
    """The same rows in float64."""
    if sp.issparse(features):
        return canonical(features).astype(np.float64, copy=False)
    return np.asarray(features, dtype=np.float64)


def gridded(features: Features, factors: FloatArray) -> FloatArray:
    """factor * row, as whole multiples of 2^-GRID (returned as those whole numbers)."""
    scaled = np.multiply(features, (factors * 2.0**GRID)[:, None], dtype=np.float64)
    return np.asarray(np.rint(scaled, out=scaled))


def checked_size(weights: FloatArray) -> float:
    """Their norm; refuses weights so long that a product would leave the floats."""
    with np.errstate(over="ignore"):
        size = math.sqrt(row_squares(weights.reshape(1, -1))[0])
    if not size < 2.0**_LARGEST_EXPONENT:
        raise InvalidInput(
            "The weights became too large for floats: the steps are too long for this loss. Choose "
            "more regularisation or a radius, or leave the step size to the algorithm."
        )
    return size


def scores(rows: FloatArray, weights: FloatArray, longest: float) -> FloatArray:
    """<row, weights> for gridded rows of norm at most `longest`."""
    size = checked_size(weights)
    exponent = max(math.frexp(size * (1.0 + 1e-9))[1], -_LARGEST_EXPONENT)
    bits, rest, parts = _bits(len(weights), longest), weights * 2.0**-exponent, []
    for number in bits:
        rest = rest * 2.0**number
        parts.append(np.rint(rest))
        rest = rest - parts[-1]
    products = _products(rows, parts)
    total = products[-1]
    for at in range(len(bits) - 1, 0, -1):
        total = products[at - 1] + total * 2.0 ** -bits[at]
    return np.asarray(total * 2.0 ** (exponent - bits[0] - GRID))


def _products(rows: FloatArray, parts: list[FloatArray]) -> list[FloatArray]:
    """rows @ part for each; a thin matrix is slower than as many vectors."""
    if parts[0].ndim == 1:
        return [np.asarray(rows @ part) for part in parts]
    return np.split(np.asarray(rows @ np.concatenate(parts, axis=1)), len(parts), axis=1)


def weights_error(width: int, longest: float) -> float:
    """How far the weights that `scores` uses are from those given, over their norm."""
    return 2.0 * math.sqrt(width) * 2.0 ** -sum(_bits(width, longest))


def _bits(width: int, longest: float) -> list[int]:
    """Of the parts of the weights, the first of norm 1, the others of entries at most 1/2.

    |row| |part| stays below 2^53 units in each.
    """
    first = 52 - GRID - max(0, math.ceil(math.log2(longest) - 0.5))
    later = first - math.ceil(math.log2(max(width, 1)) / 2.0)
    if later < 1:
        raise InvalidInput(
            f"Rows of {width:,} columns that may be {longest:g} times as long as the radius "
            "around their centre are too long for exact scores. Give a larger row_reach, or "
            "centring=0."
        )
    return [first] + [later] * math.ceil((53 - first) / later)


@final
class CarriedTotal:
    """A sum of arrays and, apart, the sum of its rounding errors."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._high, self._low = np.zeros(shape), np.zeros(shape)

    def add(self, part: FloatArray) -> None:
        new = self._high + part
        added = new - self._high
        self._low += (self._high - (new - added)) + (part - added)
        self._high = new

    def join(self, other: CarriedTotal) -> None:
        """Add a sum that was made elsewhere, its errors carried along, too."""
        self.add(other._high)
        self.add(other._low)

    @property
    def value(self) -> FloatArray:
        return np.asarray(self._high + self._low)
