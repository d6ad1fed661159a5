"""Sums and scores whose rounding is nothing, or bounded whatever the order.

`row_sums` adds along rows by elementwise operations in a fixed tree, so what comes of a row depends
on that row alone: elementwise operations of IEEE numbers have one right result.

`scores` multiplies rows whose entries are whole numbers (of 2^-GRID) by weights split into parts of
whole numbers each. By Cauchy and Schwarz any part of such a sum, added in any order, stays below
2^53, where floats hold whole numbers exactly: nothing is rounded, so nothing depends on blocks,
threads, the library of matrix products or the place of a row. The parts carry the weights to
sqrt(d) 2^-53 of their norm.

`Total` adds blocks with their rounding errors carried along (Knuth's two-sum): its error is one
unit in the last place of the result and k^2 2^-106 of the sum of the blocks' sizes.
"""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from tightrope.errors import InvalidInput
from tightrope.validate import FloatArray

__all__ = ["GRID", "Total", "gridded", "row_dots", "row_squares", "scores", "weights_error"]

GRID = 34  # rows are whole multiples of 2^-34
_LARGEST_EXPONENT = 500


def row_sums(products: FloatArray) -> FloatArray:
    """Sums along rows, in the same tree for every row; the argument is overwritten."""
    width = products.shape[1]
    while width > 1:
        half = width // 2
        products[:, :half] += products[:, width - half : width]
        width -= half
    return products[:, 0].copy() if products.shape[1] else np.zeros(products.shape[0])


def row_dots(features: Any, vector: FloatArray) -> FloatArray:
    """<row, vector> for each row; SciPy goes through each sparse row from left to right."""
    if sp.issparse(features):
        return np.asarray(_wide_sparse(features) @ vector)
    return row_sums(np.multiply(np.asarray(features), vector, dtype=np.float64))


def row_squares(features: Any) -> FloatArray:
    """Squared norm of each row."""
    if sp.issparse(features):
        wide = _wide_sparse(features)
        wide.data **= 2
        return np.asarray(wide @ np.ones(features.shape[1]))
    return row_sums(np.square(np.asarray(features), dtype=np.float64))


def gridded(features: Any, factors: FloatArray) -> Any:
    """factor * row, as whole multiples of 2^-GRID (returned as those whole numbers)."""
    units = factors * 2.0**GRID
    if not sp.issparse(features):
        return _rounded(np.asarray(features), units[:, None])
    wide = _wide_sparse(features)
    wide.data = _rounded(wide.data, np.repeat(units, np.diff(wide.indptr)))
    return wide


def _rounded(values: Any, units: FloatArray) -> FloatArray:
    """Whole numbers; 0 where the factor is 0, even of what is too large for a float."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.multiply(values, units, dtype=np.float64)
    if not units.all():
        scaled = np.where(units == 0.0, 0.0, scaled)
    return np.asarray(np.rint(scaled, out=scaled))


def _wide_sparse(features: Any) -> Any:
    wide = features.tocsr().astype(np.float64, copy=True)
    wide.sum_duplicates()  # entries given twice are one entry of the row
    return wide


def scores(rows: Any, weights: FloatArray, longest: float) -> FloatArray:
    """<row, weights> for gridded rows of norm at most `longest`."""
    size = math.sqrt(row_squares(weights.reshape(1, -1))[0])
    if not size < 2.0**_LARGEST_EXPONENT:
        raise InvalidInput(
            "The weights left the range of floats: the steps are too long for this loss. Choose "
            "more regularisation, a radius, or leave the step to the algorithm."
        )
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


def _products(rows: Any, parts: list[FloatArray]) -> list[FloatArray]:
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
class Total:
    """A sum of arrays and, apart, the sum of its rounding errors."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._high, self._low = np.zeros(shape), np.zeros(shape)

    def add(self, part: FloatArray) -> None:
        new = self._high + part
        added = new - self._high
        self._low += (self._high - (new - added)) + (part - added)
        self._high = new

    @property
    def value(self) -> FloatArray:
        return np.asarray(self._high + self._low)
