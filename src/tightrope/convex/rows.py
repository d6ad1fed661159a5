"""Private rows: scaled to norm at most 1, never trusted, large ones never copied as a whole.

A raw row x is first shortened to the norm bound: u = x min(1, data_norm/|x|)/data_norm. Where a
centre m is known (released privately, see `centred`), it is shortened again around it:
v = (u - m) min(1, radius/|u - m|)/radius; without one v = u. With an intercept the row that
reaches a gradient is (v, c)/sqrt(1 + c^2). So its norm is at most 1 whatever the data hold. Only
two factors for each row are stored: row = factor * x - shift * m. Dense, sparse and memory-mapped
features stay where they are; a block of them at a time is made float64, and kept for the next pass
where there are few.

Error: the factors of a row depend on that row alone, to the last bit. SAFETY leaves room for the
rounding of norms; what it leaves no room for is charged (see `arithmetic`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, Self, final, runtime_checkable

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from tightrope.convex import exact
from tightrope.convex.exact import Features
from tightrope.errors import InvalidInput
from tightrope.validate import FloatArray

# Constants beside rows of norm 1, chosen on public tables: they cost 12 % and 4 % of sensitivity.
INTERCEPT, CENTRED_INTERCEPT = 0.5, 0.3
SAFETY = 1.0 - 1e-6
_ABSURD = 1e12  # rows this many times over the bound count as zero
_BLOCK_ENTRIES = 1 << 18  # one block of features stays in the cache between its two products
_KEPT_ENTRIES = 1 << 24  # of which copies are kept between passes (128 MB)
PIECE = 1 << 12  # rows added in one product: a short sum rounds little


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

    @property
    def longest(self) -> float:
        """A bound on |factor * x|: without a centre on the row itself (and its grid)."""
        return 1.0 + 1e-3 if self.center is None else (1.0 + 1e-3) / self.radius

    def centred(self, center: FloatArray, radius: float) -> Scaling:
        return replace(self, center=center, radius=radius, intercept=CENTRED_INTERCEPT)

    def factors(self, features: Features) -> tuple[FloatArray, FloatArray]:
        """(factor, shift) for each row: scaled row = factor * x - shift * center."""
        norms = row_norms(features)
        first = 1.0 / np.maximum(norms, self.data_norm)
        # rows so long that a product would leave the floats (or has left them) count as zero
        first[~(norms <= _ABSURD * self.data_norm)] = 0.0
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
    features: Features, norms: FloatArray, first: FloatArray, center: FloatArray
) -> FloatArray:
    """|u - center| for the shortened rows u = first * x."""
    with np.errstate(over="ignore", invalid="ignore"):
        along = np.where(first > 0.0, first * exact.row_dots(features, center), 0.0)
        lengths = np.where(first > 0.0, first * norms, 0.0)
    squares = lengths**2 - 2.0 * along + math.fsum(center**2)
    return np.sqrt(np.maximum(squares, 0.0))


def row_norms(features: Features) -> FloatArray:
    """Euclidean norms; infinite where a square leaves the floats."""
    exact.check_finite(features)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.sqrt(exact.row_squares(features)))


@final
@dataclass(frozen=True)
class Block:
    """Some rows: scaled row i = factors[i] * features[i] - shifts[i] * scaling.center."""

    features: Any
    factors: FloatArray
    shifts: FloatArray
    scaling: Scaling
    targets: FloatArray

    @cached_property
    def _rows(self) -> Any:
        """In float64; rows that count as zero are zero, whatever a product with them would be."""
        rows = exact.wide(self.features)
        if self.factors.all():
            return rows
        if sp.issparse(rows):
            kept = np.repeat(self.factors != 0.0, np.diff(rows.indptr))
            data = np.where(kept, rows.data, 0.0)
            return sp.csr_array((data, rows.indices, rows.indptr), shape=rows.shape)
        return np.where(self.factors[:, None] == 0.0, 0.0, rows)

    def scores(self, weights: FloatArray, *, exactly: bool = False) -> FloatArray:
        """<scaled row, weights>; if `exactly`, the same to the last bit wherever a row stands."""
        body, center = weights[: self.features.shape[1]], self.scaling.center
        if exactly and not sp.issparse(self.features):
            whole = exact.gridded(self._rows, self.factors)
            scaled = exact.scores(whole, body, self.scaling.longest)
        else:  # SciPy goes through each sparse row by itself
            scaled = (self._rows @ body) * _column(self.factors, weights)
        if center is not None:
            lines = body.T.reshape(-1, len(body))
            along = exact.row_dots(lines, center) if exactly else lines @ center
            scaled = scaled - _column(self.shifts, weights) * along
        if self.scaling.intercept:
            scaled = scaled + self.scaling.constant * weights[-1]
        return np.asarray(scaled)

    def pull_back(self, slopes: FloatArray) -> FloatArray:
        """Sum over the rows of slope * scaled row, in float64."""
        body = np.asarray(self._rows.T @ (slopes * _column(self.factors, slopes)))
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

    def only(self, chosen: slice | NDArray[np.int64]) -> Block:
        return Block(
            _some(self.features, chosen),
            self.factors[chosen],
            self.shifts[chosen],
            self.scaling,
            self.targets[chosen],
        )

    def pieces(self) -> Iterator[Block]:
        """The same rows, at most PIECE at a time; what each of them computes goes with it."""
        if len(self.factors) <= PIECE:
            yield replace(self)
            return
        for at in range(0, len(self.factors), PIECE):
            yield self.only(slice(at, at + PIECE))


def _column(values: FloatArray, like: FloatArray) -> FloatArray:
    return values if like.ndim == 1 else values[:, None]


class Data(Protocol):
    """Rows that can be passed over again and again; `width` is public.

    divisible: any `part` of the rows can be had, not only the blocks they come in.
    """

    divisible: bool

    @property
    def count(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def scaling(self) -> Scaling: ...
    def blocks(self) -> Iterator[Block]: ...
    def part(self, at: slice) -> Block: ...
    def rescaled(self, scaling: Scaling) -> Self: ...


Part = Callable[[Iterable[Block]], exact.CarriedTotal]


@runtime_checkable
class SummedElsewhere(Protocol):
    """Data whose rows stay where they are: sums over them come back, and nothing else."""

    @property
    def rows(self) -> int: ...
    def total_of(self, part: Part) -> exact.CarriedTotal: ...


@final
class ArrayData:
    """Rows in a dense, memory-mapped or CSR array."""

    divisible = True

    def __init__(self, features: Features, targets: FloatArray, scaling: Scaling) -> None:
        self.features = exact.canonical(features)
        self.targets, self.scaling = _finite(targets), scaling
        self.count = int(features.shape[0])
        self.width = int(features.shape[1]) + bool(scaling.intercept)
        step = min(PIECE, max(64, _BLOCK_ENTRIES * self.count // max(self._entries, 1)))
        self._slices = [slice(at, at + step) for at in range(0, self.count, step)]
        pairs = [scaling.factors(_some(self.features, at)) for at in self._slices]
        self._factors = np.concatenate([factors for factors, _ in pairs])
        self._shifts = np.concatenate([shifts for _, shifts in pairs])

    @property
    def _entries(self) -> int:
        return int(self.features.nnz if sp.issparse(self.features) else self.features.size)

    @cached_property
    def _kept(self) -> list[Block] | None:
        """Copies of the blocks, if they are small: nothing else writes into these."""
        if self._entries > _KEPT_ENTRIES:
            return None
        return [replace(block, features=_copied(block.features)) for block in self._parts()]

    def _parts(self) -> Iterator[Block]:
        return map(self.part, self._slices)

    def blocks(self) -> Iterator[Block]:
        return self._parts() if self._kept is None else iter(self._kept)

    def part(self, at: slice) -> Block:
        features = _some(self.features, at)
        return Block(features, self._factors[at], self._shifts[at], self.scaling, self.targets[at])

    def rescaled(self, scaling: Scaling) -> ArrayData:
        return ArrayData(self.features, self.targets, scaling)


@final
class StreamData:
    """Rows read anew in each pass: `source()` gives (features, targets) pairs of arrays.

    A pass with another number of rows than `count` is refused. So under add-or-remove neighbours,
    where that number is private, pass count=None.
    """

    divisible = False

    def __init__(
        self,
        source: Callable[[], Iterator[tuple[Any, FloatArray]]],
        count: int | None,
        features: int,
        scaling: Scaling,
    ) -> None:
        self._source, self._features, self.scaling = source, features, scaling
        self._declared, self.width = count, features + bool(scaling.intercept)

    @property
    def count(self) -> int:
        if self._declared is None:
            raise InvalidInput(
                "The number of rows of this stream is private (count=None). Give it, or use "
                "adjacency='add-or-remove' with a public number of records."
            )
        return self._declared

    def blocks(self) -> Iterator[Block]:
        seen = 0
        for features, targets in self._source():
            seen += int(features.shape[0])
            features = exact.canonical(features)
            factors = self.scaling.factors(features)
            yield Block(features, *factors, self.scaling, _finite(targets))
        if self._declared is not None and seen != self._declared:
            raise InvalidInput(
                f"The stream was declared with {self._declared} rows and a pass gave another "
                "number. The noise was calibrated for the declared one: declare the right count."
            )

    def part(self, at: slice) -> Block:
        raise InvalidInput("A stream has blocks only.")

    def rescaled(self, scaling: Scaling) -> StreamData:
        return StreamData(self._source, self._declared, self._features, scaling)


@final
@dataclass(frozen=True)
class SizeOnly:
    """The public sizes of data that were not read: enough for a plan."""

    count: int
    width: int
    scaling: Scaling = Scaling(1.0)
    divisible = True

    def part(self, at: slice) -> Block:
        return next(self.blocks())

    def blocks(self) -> Iterator[Block]:
        raise InvalidInput("Only the sizes of this data are known: it can be planned, not fitted.")

    def rescaled(self, scaling: Scaling) -> SizeOnly:
        return replace(self, scaling=scaling)


@final
class WatchedData:
    """Rows that call `on_pass()` before each pass over them."""

    def __init__(self, inner: Data, on_pass: Callable[[], None]) -> None:
        self._inner, self._on_pass = inner, on_pass
        self.width, self.divisible = inner.width, inner.divisible

    @property
    def count(self) -> int:
        return self._inner.count

    @property
    def scaling(self) -> Scaling:
        return self._inner.scaling

    def blocks(self) -> Iterator[Block]:
        self._on_pass()
        return self._inner.blocks()

    def rescaled(self, scaling: Scaling) -> WatchedData:
        return WatchedData(self._inner.rescaled(scaling), self._on_pass)

    def part(self, at: slice) -> Block:
        if at.start == 0:
            self._on_pass()
        return self._inner.part(at)


def _copied(features: Features) -> Any:
    return exact.wide(features).copy() if sp.issparse(features) else features.copy()


def _some(features: Any, at: Any) -> Any:
    """Some of the rows; a slice of sparse ones shares their memory."""
    if not (sp.issparse(features) and isinstance(at, slice)):
        return features[at]
    first, last, _ = at.indices(features.shape[0])
    ends = features.indptr[first : last + 1]
    inside = slice(ends[0], ends[-1])
    entries = (features.data[inside], features.indices[inside], ends - ends[0])
    rows = sp.csr_array(entries, shape=(last - first, features.shape[1]))
    rows.has_canonical_format = features.has_canonical_format
    return rows


def _finite(targets: FloatArray) -> FloatArray:
    if not np.isfinite(targets).all():
        raise InvalidInput("The targets contain NaN or infinity; drop such rows by a fixed rule.")
    return targets
