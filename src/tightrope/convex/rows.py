"""Private rows: scaled to norm at most 1, never trusted, never copied.

A row x (with an intercept: the row (x, c) with the constant c = INTERCEPT * data_norm) is used as
x * scale, where scale = min(1, data_norm/|x|) / bound and bound = sqrt(data_norm^2 + c^2). So each
row that reaches a gradient has norm at most 1 whatever the data hold. Only the factors are stored:
dense, sparse and memory-mapped features stay where they are.

Error: norms are computed in double precision; SAFETY leaves room for the rounding of the products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import scipy.sparse as sp

from tightrope.errors import InvalidInput
from tightrope.validate import FloatArray

__all__ = ["Scaling", "Block", "Data", "ArrayData", "StreamData", "SizeOnly"]

# Chosen on simulated data: a constant of half the norm bound costs 12 % of the sensitivity.
INTERCEPT = 0.5
SAFETY = 1.0 - 1e-6
_ABSURD = 1e12  # rows this many times over the bound count as zero
_BLOCK_ENTRIES = 1 << 18  # one block of features stays in the cache between its two products


@final
@dataclass(frozen=True)
class Scaling:
    """How raw rows become rows of norm at most 1."""

    data_norm: float
    intercept: bool

    @property
    def constant(self) -> float:
        """The intercept's entry in a scaled row."""
        return INTERCEPT / math.hypot(1.0, INTERCEPT) * SAFETY if self.intercept else 0.0

    @property
    def bound(self) -> float:
        return self.data_norm * (math.hypot(1.0, INTERCEPT) if self.intercept else 1.0)

    def factors(self, features: Any) -> FloatArray:
        """One factor for each row; 0 for rows so long that a product would leave the floats."""
        norms = row_norms(features)
        factors = SAFETY / self.bound * self.data_norm / np.maximum(norms, self.data_norm)
        return np.where(norms > _ABSURD * self.data_norm, 0.0, factors)

    def unscale(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Coefficients and intercept for raw rows inside the norm bound."""
        if not self.intercept:
            zero = np.zeros(weights.shape[1:])
            return weights * (SAFETY / self.bound), zero
        return weights[:-1] * (SAFETY / self.bound), weights[-1] * self.constant


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
    """Some rows: raw features, their factors, the intercept's constant, and targets."""

    features: Any
    factors: FloatArray
    constant: float
    targets: FloatArray

    def scores(self, weights: FloatArray) -> FloatArray:
        body = weights[: self.features.shape[1]]
        with np.errstate(over="ignore", invalid="ignore"):
            raw = self.features @ body.astype(_float_type(self.features), copy=False)
        if not self.factors.all():
            raw[self.factors == 0.0] = 0.0
        scaled = raw * (self.factors if weights.ndim == 1 else self.factors[:, None])
        return np.asarray(scaled + self.constant * weights[-1]) if self.constant else scaled

    def pull_back(self, slopes: FloatArray) -> FloatArray:
        """Sum over the rows of slope * scaled row."""
        scaled = slopes * (self.factors if slopes.ndim == 1 else self.factors[:, None])
        body = self.features.T @ scaled.astype(_float_type(self.features), copy=False)
        if not self.constant:
            return np.asarray(body, dtype=np.float64)
        last = self.constant * slopes.sum(axis=0, keepdims=True)
        return np.concatenate([body, last]).astype(np.float64)

    def only(self, chosen: Any) -> Block:
        return Block(
            self.features[chosen], self.factors[chosen], self.constant, self.targets[chosen]
        )


class Data(Protocol):
    """Rows that can be passed over again and again; `count` and `width` are public."""

    @property
    def count(self) -> int: ...
    @property
    def width(self) -> int: ...
    def blocks(self) -> Iterator[Block]: ...


@final
class ArrayData:
    """Rows in a dense, memory-mapped or CSR array."""

    def __init__(self, features: Any, targets: FloatArray, scaling: Scaling) -> None:
        self.features, self.targets, self.scaling = features, targets, scaling
        self.count = int(features.shape[0])
        self.width = int(features.shape[1]) + scaling.intercept
        step = self.count if sp.issparse(features) else max(64, _BLOCK_ENTRIES // self.width)
        self._slices = [slice(at, at + step) for at in range(0, self.count, step)]
        self._factors = np.concatenate([scaling.factors(features[at]) for at in self._slices])

    def blocks(self) -> Iterator[Block]:
        for at in self._slices:
            yield self.part(at)

    def part(self, at: slice) -> Block:
        return Block(self.features[at], self._factors[at], self.scaling.constant, self.targets[at])


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
        self._source, self.scaling = source, scaling
        self.count, self.width = count, features + scaling.intercept

    def blocks(self) -> Iterator[Block]:
        seen = 0
        for features, targets in self._source():
            seen += int(features.shape[0])
            yield Block(features, self.scaling.factors(features), self.scaling.constant, targets)
        if seen != self.count:
            raise InvalidInput(
                f"The stream was declared with {self.count} rows and a pass gave another number. "
                "The noise was calibrated for the declared one: declare the right count."
            )


@final
@dataclass(frozen=True)
class SizeOnly:
    """The public sizes of data that nobody has looked at: enough for a plan."""

    count: int
    width: int

    def blocks(self) -> Iterator[Block]:
        raise InvalidInput("Only the sizes of this data are known: it can be planned, not fitted.")


def _float_type(features: Any) -> np.dtype[Any]:
    kind = features.dtype
    return kind if kind in (np.float32, np.float64) else np.dtype(np.float64)
