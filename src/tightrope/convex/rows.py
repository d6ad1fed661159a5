"""Private rows: scaled to norm at most 1, never trusted, never copied.

A raw row x is first shortened to the norm bound: u = x min(1, data_norm/|x|)/data_norm. Where a
centre m is known (released privately, see `centred`), it is shortened again around it:
v = (u - m) min(1, radius/|u - m|)/radius; without one v = u. With an intercept the row that
reaches a gradient is (v, c)/sqrt(1 + c^2). So its norm is at most 1 whatever the data hold. Only
two factors for each row are stored: row = factor * x - shift * m. Dense, sparse and memory-mapped
features stay where they are.

Error: norms are computed in double precision; SAFETY leaves room for the rounding of the products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, Self, final

import numpy as np
import scipy.sparse as sp

from tightrope.errors import InvalidInput
from tightrope.validate import FloatArray

__all__ = ["INTERCEPT", "Scaling", "Block", "Data", "ArrayData", "StreamData", "SizeOnly"]

# Constants beside rows of norm 1, chosen on public tables: they cost 12 % and 4 % of sensitivity.
INTERCEPT, CENTRED_INTERCEPT = 0.5, 0.3
SAFETY = 1.0 - 1e-6
_ABSURD = 1e12  # rows this many times over the bound count as zero
_BLOCK_ENTRIES = 1 << 18  # one block of features stays in the cache between its two products


@final
@dataclass(frozen=True)
class Scaling:
    """How raw rows become rows of norm at most 1; `intercept` is its constant, 0 for none."""

    data_norm: float
    intercept: float = INTERCEPT
    center: FloatArray | None = field(default=None, repr=False)
    radius: float = 1.0

    @property
    def constant(self) -> float:
        """The intercept's entry in a scaled row."""
        return self.intercept * self._shrunk

    @property
    def _shrunk(self) -> float:
        return SAFETY / math.hypot(1.0, self.intercept)

    def centred(self, center: FloatArray, radius: float) -> Scaling:
        return replace(self, center=center, radius=radius, intercept=CENTRED_INTERCEPT)

    def factors(self, features: Any) -> tuple[FloatArray, FloatArray]:
        """(factor, shift) for each row: scaled row = factor * x - shift * center."""
        norms = row_norms(features)
        first = 1.0 / np.maximum(norms, self.data_norm)
        # rows so long that a product would leave the floats count as zero
        first[norms > _ABSURD * self.data_norm] = 0.0
        second = np.full(len(norms), self._shrunk)
        if self.center is not None:
            away = _distances(features, norms, first, self.center)
            second /= np.maximum(away, self.radius)
        return first * second, second

    def unscale(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Coefficients and intercept for raw rows that no bound shortens."""
        body = weights[:-1] if self.intercept else weights
        coefficients = body * (self._shrunk / (self.data_norm * self.radius))
        intercept = self.constant * weights[-1] if self.intercept else np.zeros(weights.shape[1:])
        if self.center is not None:
            intercept = intercept - self._shrunk / self.radius * (self.center @ body)
        return coefficients, np.asarray(intercept)


def _distances(
    features: Any, norms: FloatArray, first: FloatArray, center: FloatArray
) -> FloatArray:
    """|u - center| for the shortened rows u = first * x."""
    wide = features.astype(np.float64) if sp.issparse(features) else np.asarray(features, float)
    with np.errstate(over="ignore", invalid="ignore"):
        along = np.where(first > 0.0, first * (wide @ center), 0.0)
        lengths = np.where(first > 0.0, first * norms, 0.0)
    squares = lengths**2 - 2.0 * along + float(center @ center)
    return np.sqrt(np.maximum(squares, 0.0))


def row_norms(features: Any) -> FloatArray:
    """Euclidean norms; refuses NaN and infinities without telling where or what they are."""
    values = features.data if sp.issparse(features) else features
    if not np.isfinite(values).all():
        raise InvalidInput(
            "The features contain NaN or infinity, so their rows have no norm. Impute or drop such "
            "rows by a rule that does not depend on other rows."
        )
    with np.errstate(over="ignore"):
        if sp.issparse(features):
            wide = features.astype(np.float64)
            squares = np.asarray(wide.multiply(wide).sum(axis=1)).ravel()
        else:
            wide = np.asarray(features, dtype=np.float64)
            squares = np.einsum("ij,ij->i", wide, wide)
        return np.asarray(np.sqrt(squares))


class Block(NamedTuple):
    """Some rows: scaled row i = factors[i] * features[i] - shifts[i] * scaling.center."""

    features: Any
    factors: FloatArray
    shifts: FloatArray
    scaling: Scaling
    targets: FloatArray

    def scores(self, weights: FloatArray) -> FloatArray:
        body = weights[: self.features.shape[1]]
        with np.errstate(over="ignore", invalid="ignore"):
            raw = self.features @ body.astype(_float_type(self.features), copy=False)
        if not self.factors.all():
            raw[self.factors == 0.0] = 0.0
        scaled = raw * _column(self.factors, weights)
        if self.scaling.center is not None:
            scaled = scaled - _column(self.shifts, weights) * (self.scaling.center @ body)
        if self.scaling.intercept:
            scaled = scaled + self.scaling.constant * weights[-1]
        return np.asarray(scaled)

    def pull_back(self, slopes: FloatArray) -> FloatArray:
        """Sum over the rows of slope * scaled row."""
        scaled = slopes * _column(self.factors, slopes)
        body = self.features.T @ scaled.astype(_float_type(self.features), copy=False)
        body = np.asarray(body, dtype=np.float64)
        if self.scaling.center is not None:
            shifted = (slopes * _column(self.shifts, slopes)).sum(axis=0)
            body = body - np.multiply.outer(self.scaling.center, shifted)
        if not self.scaling.intercept:
            return np.asarray(body)
        last = self.scaling.constant * slopes.sum(axis=0, keepdims=True)
        return np.concatenate([body, last])

    def squared_norms(self) -> FloatArray:
        """Of the scaled rows, intercept and centre left out."""
        lengths = row_norms(self.features)
        return np.asarray(np.where(self.factors > 0.0, lengths, 0.0) * self.factors) ** 2

    def only(self, chosen: Any) -> Block:
        return Block(
            self.features[chosen],
            self.factors[chosen],
            self.shifts[chosen],
            self.scaling,
            self.targets[chosen],
        )


def _column(values: FloatArray, like: FloatArray) -> FloatArray:
    return values if like.ndim == 1 else values[:, None]


class Data(Protocol):
    """Rows that can be passed over again and again; `count` and `width` are public."""

    @property
    def count(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def scaling(self) -> Scaling: ...
    def blocks(self) -> Iterator[Block]: ...
    def rescaled(self, scaling: Scaling) -> Self: ...


@final
class ArrayData:
    """Rows in a dense, memory-mapped or CSR array."""

    def __init__(self, features: Any, targets: FloatArray, scaling: Scaling) -> None:
        self.features, self.targets, self.scaling = features, targets, scaling
        self.count = int(features.shape[0])
        self.width = int(features.shape[1]) + bool(scaling.intercept)
        step = self.count if sp.issparse(features) else max(64, _BLOCK_ENTRIES // self.width)
        self._slices = [slice(at, at + step) for at in range(0, self.count, step)]
        pairs = [scaling.factors(features[at]) for at in self._slices]
        self._factors = np.concatenate([factors for factors, _ in pairs])
        self._shifts = np.concatenate([shifts for _, shifts in pairs])

    def blocks(self) -> Iterator[Block]:
        for at in self._slices:
            yield self.part(at)

    def part(self, at: slice) -> Block:
        return Block(
            self.features[at], self._factors[at], self._shifts[at], self.scaling, self.targets[at]
        )

    def rescaled(self, scaling: Scaling) -> ArrayData:
        return ArrayData(self.features, self.targets, scaling)


@final
class StreamData:
    """Rows read anew in each pass: `source()` gives (features, targets) pairs of arrays.

    `count` is public (under replace-one neighbours the number of rows is); a pass with another
    number of rows is refused.
    """

    def __init__(
        self,
        source: Callable[[], Iterator[tuple[Any, FloatArray]]],
        count: int,
        features: int,
        scaling: Scaling,
    ) -> None:
        self._source, self._features, self.scaling = source, features, scaling
        self.count, self.width = count, features + bool(scaling.intercept)

    def blocks(self) -> Iterator[Block]:
        seen = 0
        for features, targets in self._source():
            seen += int(features.shape[0])
            yield Block(features, *self.scaling.factors(features), self.scaling, targets)
        if seen != self.count:
            raise InvalidInput(
                f"The stream was declared with {self.count} rows and a pass gave another number. "
                "The noise was calibrated for the declared one: declare the right count."
            )

    def rescaled(self, scaling: Scaling) -> StreamData:
        return StreamData(self._source, self.count, self._features, scaling)


@final
@dataclass(frozen=True)
class SizeOnly:
    """The public sizes of data that nobody has looked at: enough for a plan."""

    count: int
    width: int
    scaling: Scaling = Scaling(1.0)

    def blocks(self) -> Iterator[Block]:
        raise InvalidInput("Only the sizes of this data are known: it can be planned, not fitted.")

    def rescaled(self, scaling: Scaling) -> SizeOnly:
        return replace(self, scaling=scaling)


def _float_type(features: Any) -> np.dtype[Any]:
    kind = features.dtype
    return kind if kind in (np.float32, np.float64) else np.dtype(np.float64)
