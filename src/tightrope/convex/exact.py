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
        scaled = np.multiply(np.asarray(features), units[:, None], dtype=np.float64)
        return np.rint(scaled, out=scaled)
    wide = _wide_sparse(features)
    wide.data *= np.repeat(units, np.diff(wide.indptr))
    np.rint(wide.data, out=wide.data)
    return wide


def _wide_sparse(features: Any) -> Any:
    wide = features.tocsr().astype(np.float64, copy=True)
    wide.sum_duplicates()  # entries given twice are one entry of the row
    return wide


def scores(rows: Any, weights: FloatArray, longest: float) -> FloatArray:
    """<row, weights> for gridded rows of norm at most `longest`."""
    size = float(np.linalg.norm(weights))
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
    products = np.asarray(rows @ np.stack(parts, axis=-1).reshape(len(weights), -1))
    products = products.reshape(*products.shape[:1], *weights.shape[1:], len(bits))
    total = products[..., -1]
    for at in range(len(bits) - 1, 0, -1):
        total = products[..., at - 1] + total * 2.0 ** -bits[at]
    return np.asarray(total * 2.0 ** (exponent - bits[0] - GRID))


def weights_error(width: int, longest: float) -> float:
    """How far the weights that `scores` uses are from those given, over their norm."""
    return 2.0 * math.sqrt(width) * 2.0 ** -sum(_bits(width, longest))


def _bits(width: int, longest: float) -> list[int]:
    """Of the parts of the weights, the first of norm 1, the others of entries at most 1/2.

    |row| |part| stays below 2^53 units in each.
    """
    first = 52 - GRID - max(0, math.ceil(math.log2(longest) - 0.5))
    later = max(1, first - math.ceil(math.log2(max(width, 1)) / 2.0))
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
